// Loads the final model back and compares it with the trained weights, bit for bit.
#include "mlp.hpp"
#include "setup.hpp"
#include "summary.hpp"

#include <cstring>
#include <fstream>
#include <iterator>

namespace train_digits {

using millrace::errc;
using millrace::fail;
using millrace::status;

namespace {

millrace::result<std::vector<char>> read_all(const std::string& path) {
  std::ifstream file{path, std::ios::binary};
  if (!file)
    return fail(errc::io_error, "cannot read " + path);
  return std::vector<char>{std::istreambuf_iterator<char>{file}, {}};
}

status compare(mlp& model, const std::vector<char>& expected) {
  std::size_t at = 0;
  for (auto& tensor : model.tensors()) {
    auto size = *millrace::size_bytes(tensor.desc);
    if (expected.size() - at < size || std::memcmp(expected.data() + at, tensor.data, size) != 0)
      return {errc::corrupt_data, tensor.desc.name + " differs from what was trained"};
    at += size;
  }
  return at == expected.size() ? status{} : status{errc::corrupt_data, "tensors are missing"};
}

// Loads the same tensor into a column-major matrix, which is Eigen's default. A strided view
// scatters it on arrival.
status compare_strided(millrace::repository kept, mlp& model) {
  auto& first = model.layers().front();
  Eigen::MatrixXf columns = Eigen::MatrixXf::Zero(first.weight.rows(), first.weight.cols());
  auto view = strided_view(first.label + ".weight", columns);
  auto loaded = kept.load(final_name, {{.into = view}}).result();
  if (!loaded)
    return loaded.error();
  return columns == first.weight
    ? status{}
    : status{errc::corrupt_data, view.desc.name + " differs when loaded with strides"};
}

} // namespace

status verify_phase(const phase_options& options) {
  auto expected = read_all(options.weights);
  if (!expected)
    return expected.error();
  auto ready = set_up(options);
  if (!ready)
    return ready.error();
  summary tell{options.summary};

  auto kept = ready->client.repository("kept");
  mlp model{widths_for(10), 0}; // not the expected weights
  std::vector<millrace::load_target> targets;
  for (auto& tensor : model.tensors())
    targets.push_back({.into = tensor});
  auto loaded = kept.load(final_name, std::move(targets)).result();
  if (!loaded)
    return loaded.error();
  if (auto bad = compare(model, *expected); !bad.ok())
    return bad;
  if (auto bad = compare_strided(kept, model); !bad.ok())
    return bad;
  tell.say(
    "loaded {}, {} bytes, version {}, from {}, checksums {}, moved by {}: the same bit for "
    "bit, {:.2f} % of the test images right",
    final_name, loaded->size_bytes, loaded->version, loaded->provider,
    loaded->verified ? "agree" : "not kept", loaded->driver,
    100 * model.accuracy(ready->digits.test));
  return {};
}

} // namespace train_digits
