// A client that stores numbers until it is killed: `number_storer FILE COUNT VALUE` stores
// VALUE + i as model i, or erases it if VALUE is 0, and prints i when that is acknowledged. It
// prints "begins" first.
#include <millrace/tests/support/changing_cluster.hpp>

#include <cstdlib>
#include <iostream>

using namespace millrace;

int main(int count, char** words) {
  if (count != 4)
    return 2;
  std::cout << "begins" << std::endl;
  auto reached = client::of(load_configuration(words[1]).value());
  if (!reached)
    return 3;
  auto repo = reached->repository();
  auto first = std::strtoull(words[3], nullptr, 10);
  for (int i = 0; i < std::atoi(words[2]); ++i) {
    auto name = testing::model_name(i);
    auto good = first == 0 ? repo.erase(name).result().has_value()
                           : testing::store_number(repo, name, first + i).has_value();
    if (good)
      std::cout << i << std::endl;
  }
  return 0;
}
