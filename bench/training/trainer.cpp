// The threads that compute, and what threads have spent on cores.
#include <millrace/bench/common/measure.hpp>
#include <millrace/bench/training/trainer.hpp>

#include <Eigen/Core>
#include <pthread.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <filesystem>
#include <fstream>

namespace millrace::bench {

namespace {

constexpr int width = 256; // of the matrices: those of a thread fit into its core's cache
constexpr int layers = 24;
constexpr auto thread_name = "compute";

} // namespace

struct core_trainer::part {
  explicit part(std::span<float> of)
    : parameters(of.data(), static_cast<Eigen::Index>(of.size())),
      a(Eigen::MatrixXf::Random(width, width)), b(a), c(a) {}

  void layer(std::uint32_t products) {
    for (std::uint32_t i = 0; i < products; ++i) {
      c.noalias() = a * b;
      b = c * (1.0f / width);
    }
  }

  Eigen::Map<Eigen::VectorXf> parameters;
  Eigen::MatrixXf a, b, c;
};

core_trainer::core_trainer(std::span<std::byte> parameters, unsigned threads)
  : begin_(threads + 1), end_(threads + 1), layer_(threads) {
  std::span<float> all{
    reinterpret_cast<float*>(parameters.data()), parameters.size() / sizeof(float)};
  for (unsigned i = 0; i < threads; ++i) {
    auto first = all.size() * i / threads, last = all.size() * (i + 1) / threads;
    parts_.push_back(std::make_unique<part>(all.subspan(first, last - first)));
    threads_.emplace_back([this, one = parts_.back().get()] {
      pthread_setname_np(pthread_self(), thread_name);
      for (;;) {
        begin_.arrive_and_wait();
        if (!work_)
          return;
        work_(*one);
        end_.arrive_and_wait();
      }
    });
  }
}

core_trainer::~core_trainer() {
  work_ = nullptr;
  begin_.arrive_and_wait();
  for (auto& one : threads_)
    one.join();
}

void core_trainer::each(std::function<void(part&)> work) {
  work_ = std::move(work);
  begin_.arrive_and_wait();
  end_.arrive_and_wait();
}

void core_trainer::forward_and_backward() {
  each([this](part& one) {
    for (int i = 0; i < layers; ++i) {
      one.layer(products_);
      layer_.arrive_and_wait();
    }
  });
}

void core_trainer::update() {
  each([](part& one) { one.parameters.array() -= 1e-6f; });
}

void core_trainer::calibrate(double seconds) {
  auto iteration = [this] {
    return seconds_of([this] {
      forward_and_backward();
      update();
    });
  };
  products_ = 1;
  iteration();
  // Twice, since a processor that was idle is slow at first.
  for (int i = 0; i < 2; ++i) {
    auto updating = seconds_of([this] { update(); });
    auto computing = std::max(seconds - updating, seconds / 4);
    // An update that something held up must not make the products look like nothing.
    auto whole = iteration();
    auto one = std::max(whole - updating, whole / 4) / products_;
    products_ = std::max(static_cast<std::uint32_t>(std::lround(computing / one)), 1u);
  }
}

double core_seconds_of_threads(const std::string& prefix) {
  double sum = 0;
  for (auto& entry : std::filesystem::directory_iterator{"/proc/self/task"}) {
    std::string name;
    std::getline(std::ifstream{entry.path() / "comm"}, name);
    if (!name.starts_with(prefix))
      continue;
    // As pthread_getcpuclockid makes it, for a thread that is known by its number.
    auto clock = static_cast<clockid_t>(~std::stol(entry.path().filename().string()) << 3 | 6);
    timespec t{};
    if (clock_gettime(clock, &t) == 0)
      sum += static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
  }
  return sum;
}

} // namespace millrace::bench
