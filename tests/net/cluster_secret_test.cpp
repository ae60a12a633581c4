// Tests the cluster's secret file: who may read it, what is refused, and that it is never
// overwritten.
#include "channel_support.hpp"

#include <millrace/tests/support/skipped.hpp>

#include <sys/stat.h>

#include <fstream>

using namespace millrace;
using namespace millrace::net::tls;
using namespace millrace::net::testing;

namespace {

std::string text_of(const std::string& path) {
  std::ifstream in{path, std::ios::binary};
  return {std::istreambuf_iterator<char>{in}, {}};
}

void write_private(const std::string& path, const std::string& text) {
  std::ofstream{path, std::ios::binary} << text;
  BOOST_REQUIRE(::chmod(path.c_str(), 0600) == 0);
}

struct secret_file {
  secret_file() { BOOST_REQUIRE(create_cluster_secret(path).ok()); }
  status load_error() const {
    auto loaded = load_cluster_secret(path);
    BOOST_REQUIRE(!loaded);
    BOOST_TEST(loaded.error().detail().find(path) != std::string::npos);
    return loaded.error();
  }
  temp_dir dir;
  std::string path = dir.path + "/secret";
};

} // namespace

BOOST_AUTO_TEST_SUITE(cluster_secrets)

BOOST_AUTO_TEST_CASE(a_new_secret_is_private_whatever_the_mask_and_no_two_are_alike) {
  auto mask = ::umask(0777);
  secret_file a;
  ::umask(0);
  secret_file b;
  ::umask(mask);
  for (auto* f : {&a, &b}) {
    struct stat found {};
    BOOST_REQUIRE(::stat(f->path.c_str(), &found) == 0);
    BOOST_TEST((found.st_mode & 07777) == 0600u);
  }
  auto one = load_cluster_secret(a.path), other = load_cluster_secret(b.path);
  BOOST_REQUIRE((one && other));
  BOOST_TEST((*one != *other));
  BOOST_TEST(text_of(a.path) == encode_cluster_secret(*one));
}

BOOST_AUTO_TEST_CASE(a_secret_is_never_overwritten) {
  secret_file f;
  auto before = text_of(f.path);
  auto again = create_cluster_secret(f.path);
  BOOST_TEST((again.code() == errc::already_exists));
  BOOST_TEST(again.detail().find(f.path) != std::string::npos);
  BOOST_TEST(text_of(f.path) == before);
}

BOOST_AUTO_TEST_CASE(a_secret_that_group_or_others_can_reach_is_refused) {
  secret_file f;
  for (auto mode : {0640, 0604, 0620, 0602, 0610, 0644, 0777}) {
    BOOST_REQUIRE(::chmod(f.path.c_str(), static_cast<mode_t>(mode)) == 0);
    auto why = f.load_error();
    BOOST_TEST((why.code() == errc::permission_denied));
    BOOST_TEST(why.detail().find("chmod 600") != std::string::npos);
  }
  BOOST_REQUIRE(::chmod(f.path.c_str(), 0400) == 0);
  BOOST_TEST(load_cluster_secret(f.path).has_value());
}

BOOST_AUTO_TEST_CASE(a_secret_of_another_user_is_refused) {
  if (::geteuid() != 0) {
    millrace::testing::skipped("a secret of another user: needs root to give a file away");
    return;
  }
  secret_file f;
  BOOST_REQUIRE(::chown(f.path.c_str(), 65534, 65534) == 0);
  auto why = f.load_error();
  BOOST_TEST((why.code() == errc::permission_denied));
  BOOST_TEST(why.detail().find("user 65534") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_missing_secret_is_said_with_the_command_that_makes_one) {
  temp_dir dir;
  auto loaded = load_cluster_secret(dir.path + "/none");
  BOOST_REQUIRE(!loaded);
  BOOST_TEST((loaded.error().code() == errc::not_found));
  BOOST_TEST(loaded.error().detail().find("millrace cluster secret") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(a_damaged_secret_is_refused_and_never_quoted) {
  secret_file f;
  auto good = text_of(f.path);
  auto flipped = good;
  flipped[30] = flipped[30] == 'a' ? 'b' : 'a';
  auto letter = good;
  letter[30] = 'x';
  for (auto& text :
       {std::string{}, std::string{"\n"}, good.substr(0, 40), good.substr(0, good.size() - 5),
        good + good, flipped, letter, std::string(3000, 'a'), std::string(5000, 'a'),
        std::string(82, '\0'), "other" + good}) {
    write_private(f.path, text);
    auto why = f.load_error();
    BOOST_TEST((why.code() == errc::corrupt_data));
    if (text.size() > 60)
      BOOST_TEST(why.detail().find(good.substr(20, 20)) == std::string::npos);
  }
  write_private(f.path, good.substr(0, good.size() - 1) + "\r\n");
  BOOST_TEST(load_cluster_secret(f.path).has_value());
}

BOOST_AUTO_TEST_CASE(what_is_no_regular_file_is_refused_without_waiting_for_it) {
  temp_dir dir;
  auto path = dir.path + "/pipe";
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  auto loaded = load_cluster_secret(path);
  BOOST_REQUIRE(!loaded);
  BOOST_TEST((loaded.error().code() == errc::corrupt_data));
  BOOST_TEST(!load_cluster_secret(dir.path).has_value());
}

BOOST_AUTO_TEST_SUITE_END()
