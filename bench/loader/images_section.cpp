// Images in JPEG as pixels, on one core: ours as the preload decodes them, beside torchvision's
// ImageFolder.
#include <millrace/bench/loader/stage.hpp>
#include <millrace/storage/samples/sample_reader.hpp>

#include <fmt/format.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace millrace::bench {

namespace {

constexpr int width = 500, height = 375, quality = 90; // as most images of ImageNet
constexpr std::size_t images = 128;

struct way {
  const char* name;
  const char* decode;
  double goal; // times as fast as the peer
};
constexpr way ways[] = {{"224", "x=rgb:224", 1.5}, {"full", "x=rgb", 1}};

// Smooth shapes with noise, of about the bytes that a photograph has.
std::vector<unsigned char> made_pixels(std::uint64_t seed) {
  std::mt19937_64 random{seed};
  std::vector<unsigned char> out;
  out.reserve(std::size_t{3} * width * height);
  auto wave = 10.0 + static_cast<double>(seed % 50);
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < 3; ++c) {
        auto smooth = 128 + 90 * std::sin((x + 0.7 * y) / wave + c);
        auto noise = static_cast<double>(random() % 49) - 24;
        out.push_back(static_cast<unsigned char>(std::clamp(smooth + noise, 0.0, 255.0)));
      }
  return out;
}

void write_jpeg(const std::string& path, std::uint64_t seed) {
  auto pixels = made_pixels(seed);
  std::unique_ptr<void, int (*)(void*)> maker{::tjInitCompress(), &::tjDestroy};
  unsigned char* bytes = nullptr;
  unsigned long size = 0;
  auto made = ::tjCompress2(
    maker.get(), pixels.data(), width, 0, height, TJPF_RGB, &bytes, &size, TJSAMP_420, quality, 0);
  std::ofstream file{path, std::ios::binary};
  file.write(reinterpret_cast<const char*>(bytes), static_cast<std::streamsize>(size));
  ::tjFree(bytes);
  if (made != 0 || !file.flush())
    give_up("the image " + path + " cannot be written");
}

// Reads the images in turn, as one thread of a preload does.
class decoding {
public:
  decoding(const std::string& folder, const char* decode) {
    storage::samples::sample_options how;
    how.decode = {decode};
    how.fields = {"x"};
    reader_ = need(storage::samples::open_samples({folder}, how), "opening images");
    pixels_.resize(need(size_bytes(reader_->fields().front().sample), "sizing an image"));
  }

  double read(std::size_t count) {
    return seconds_of([&] {
      for (; count > 0; --count, next_ = (next_ + 1) % reader_->samples())
        if (auto bad = reader_->read(0, next_, 1, pixels_); !bad.ok())
          give_up(bad, "decoding an image");
    });
  }

  std::uint64_t pixel_bytes() const { return pixels_.size(); }

private:
  std::unique_ptr<storage::samples::sample_reader> reader_;
  std::vector<std::byte> pixels_;
  std::uint64_t next_ = 0;
};

void measure(const stage& s, const std::string& folder, const way& of, python_peer* peer) {
  auto count = s.options.quick ? images / 4 : images;
  decoding here{folder, of.decode};
  contest all;
  auto& ours = all.add([&] { return here.read(count); });
  const samples* theirs = nullptr;
  if (peer)
    theirs = &all.add([&] { return peer->measure(of.name, static_cast<int>(count)); });
  all.run(s.rounds(7));
  row r;
  r.name = fmt::format("images/jpeg/{}", of.name);
  r.size_bytes = here.pixel_bytes();
  for (auto seconds : ours.values())
    r.ours.add(seconds / static_cast<double>(count));
  r.peer = "ImageFolder";
  if (theirs)
    r.peer_s = theirs->median() / static_cast<double>(count);
  if (!s.options.quick)
    r.ratio_min = of.goal;
  s.out.add(std::move(r));
}

} // namespace

void images_section(const stage& s) {
  if (!s.wants("jpeg"))
    return;
  auto folder = s.files.file("images");
  std::filesystem::create_directories(folder + "/0");
  for (std::size_t i = 0; i < images; ++i)
    write_jpeg(fmt::format("{}/0/{:04}.jpg", folder, i), i);
  auto peer = s.options.no_peers ? std::nullopt : python_peer::start("imagefolder");
  if (peer) {
    model_table table;
    table.tensors.tensors = {{folder + "/0", dtype::u8, {images}}};
    peer->build(table);
  }
  for (auto& one : ways)
    measure(s, folder, one, peer ? &*peer : nullptr);
}

} // namespace millrace::bench
