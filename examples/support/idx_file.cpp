// SPDX-License-Identifier: Apache-2.0
#include "support/idx_file.h"

#include <ATen/ops/empty.h>
#include <lockstep/error.h>
#include <zlib.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace examples {
namespace {

constexpr std::uint8_t kUnsignedByte = 0x08;
// A damaged header must not make us ask for all of the machine's memory.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 32;

struct Close {
  void operator()(gzFile file) const { gzclose(file); }
};

class Reader {
 public:
  explicit Reader(const std::filesystem::path& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) {
      fail("cannot open the file");
    }
    gzbuffer(file_.get(), 1U << 17);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw lockstep::InputError("[idx] " + path_.string() + ": " + what);
  }

  /// Fills `bytes`, unless the file ends earlier or is damaged.
  void read(void* bytes, std::int64_t count, const char* part) {
    const auto got = gzfread(bytes, 1, static_cast<std::size_t>(count), file_.get());
    if (static_cast<std::int64_t>(got) != count) {
      fail(std::string("truncated or damaged in its ") + part + ": got " + std::to_string(got) + " bytes, expected " +
           std::to_string(count));
    }
  }

  /// Reaching the end of the data is also what makes zlib compare its checksum.
  void expect_end() {
    const int next = gzgetc(file_.get());
    int error = Z_OK;
    gzerror(file_.get(), &error);
    if (error != Z_OK) {
      fail("damaged: its checksum does not fit its data");
    }
    if (next != -1) {
      fail("holds more data than its header says");
    }
  }

 private:
  std::filesystem::path path_;
  std::unique_ptr<gzFile_s, Close> file_;
};

std::vector<std::int64_t> read_sizes(Reader& file, int dimensions) {
  std::array<std::uint8_t, 4> magic{};
  file.read(magic.data(), magic.size(), "header");
  if (magic[0] != 0 || magic[1] != 0 || magic[2] != kUnsignedByte || magic[3] != dimensions) {
    file.fail("not an idx file of unsigned bytes with " + std::to_string(dimensions) + " dimensions");
  }
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < dimensions; ++i) {
    std::array<std::uint8_t, 4> b{};
    file.read(b.data(), b.size(), "header");
    sizes.push_back((std::int64_t{b[0]} << 24) | (b[1] << 16) | (b[2] << 8) | b[3]);
  }
  return sizes;
}

std::int64_t checked_product(const Reader& file, const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const auto size : sizes) {
    if (count != 0 && size > kMostBytes / count) {  // a product could overflow
      file.fail("its header claims more than 4 GiB of data");
    }
    count *= size;
  }
  return count;
}

}  // namespace

at::Tensor read_idx(const std::filesystem::path& path, int dimensions) {
  Reader file(path);
  const auto sizes = read_sizes(file, dimensions);
  const auto count = checked_product(file, sizes);
  auto data = at::empty(sizes, at::kByte);
  file.read(data.mutable_data_ptr(), count, "data");
  file.expect_end();
  return data;
}

}  // namespace examples
