// SPDX-License-Identifier: Apache-2.0
#include "support/idx_file.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <lockstep/error.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <string>

#include "support/fashion_mnist.h"

namespace examples {
namespace {

namespace fs = std::filesystem;

std::string big_endian(std::uint32_t number) {
  return {static_cast<char>(number >> 24), static_cast<char>(number >> 16), static_cast<char>(number >> 8),
          static_cast<char>(number)};
}

std::string idx(const std::vector<std::uint32_t>& sizes, const std::string& data, char type = 0x08) {
  std::string bytes = {0, 0, type, static_cast<char>(sizes.size())};
  for (const auto size : sizes) {
    bytes += big_endian(size);
  }
  return bytes + data;
}

class IdxFile : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path plain(const std::string& name, const std::string& bytes) const {
    std::ofstream(folder_ / name, std::ios::binary) << bytes;
    return folder_ / name;
  }
  fs::path gzipped(const std::string& name, const std::string& bytes) const {
    auto* file = gzopen((folder_ / name).c_str(), "wb");
    gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
    gzclose(file);
    return folder_ / name;
  }
  static std::string slurp(const fs::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // The message for a file, which must be refused.
  static std::string refusal(const fs::path& path, int dimensions) {
    try {
      read_idx(path, dimensions);
    } catch (const lockstep::InputError& error) {
      EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos);
      return error.what();
    }
    return "accepted";
  }
  static bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

  fs::path folder_ = fs::temp_directory_path() / ("lockstep_idx_" + std::to_string(getpid()));
};

TEST_F(IdxFile, reads_plain_and_gzipped_files) {
  const auto bytes = idx({2, 3}, "abcdef");
  const auto expected = at::tensor({97, 98, 99, 100, 101, 102}, at::kByte).view({2, 3});
  EXPECT_TRUE(read_idx(plain("a", bytes), 2).equal(expected));
  EXPECT_TRUE(read_idx(gzipped("a.gz", bytes), 2).equal(expected));
  EXPECT_EQ(read_idx(plain("empty", idx({0}, "")), 1).numel(), 0);
}

TEST_F(IdxFile, refuses_what_is_missing_or_something_else) {
  EXPECT_TRUE(says(refusal(folder_ / "none", 1), "cannot open"));
  EXPECT_TRUE(says(refusal(plain("a", "hello, this is text"), 1), "not an idx file"));
  EXPECT_TRUE(says(refusal(plain("b", idx({1}, "x", 0x0d)), 1), "not an idx file"));
  EXPECT_TRUE(says(refusal(plain("c", idx({1}, "x")), 3), "with 3 dimensions"));
  EXPECT_TRUE(says(refusal(plain("d", ""), 1), "header"));
  EXPECT_TRUE(says(refusal(plain("e", idx({4294967295U, 4294967295U, 4294967295U}, "")), 3), "4 GiB"));
}

TEST_F(IdxFile, refuses_too_little_and_too_much_data) {
  EXPECT_TRUE(says(refusal(plain("a", idx({7}, "abc")), 1), "got 3 bytes, expected 7"));
  EXPECT_TRUE(says(refusal(plain("b", idx({3}, "abcd")), 1), "more data"));
  EXPECT_TRUE(says(refusal(plain("c", idx({3}, "").substr(0, 6)), 1), "header"));
}

TEST_F(IdxFile, refuses_damaged_gzip_files) {
  const auto bytes = slurp(gzipped("a.gz", idx({1000}, std::string(1000, 'x'))));
  EXPECT_NE(refusal(plain("short.gz", bytes.substr(0, bytes.size() / 2)), 1), "accepted");
  EXPECT_NE(refusal(plain("no_checksum.gz", bytes.substr(0, bytes.size() - 8)), 1), "accepted");
  auto flipped = bytes;
  flipped[bytes.size() - 8] = static_cast<char>(flipped[bytes.size() - 8] ^ 1);
  EXPECT_NE(refusal(plain("checksum.gz", flipped), 1), "accepted");
}

class FashionMnistFiles : public IdxFile {
 protected:
  void write(std::uint32_t images, std::uint32_t side, const std::string& labels) const {
    gzipped("t10k-images-idx3-ubyte.gz", idx({images, side, side}, std::string(images * side * side, 'x')));
    plain("t10k-labels-idx1-ubyte", idx({static_cast<std::uint32_t>(labels.size())}, labels));
  }
  std::string refused() const {
    try {
      FashionMnist(folder_, FashionMnist::Part::Test);
    } catch (const lockstep::InputError& error) {
      return error.what();
    }
    return "accepted";
  }
};

TEST_F(FashionMnistFiles, makes_normalised_batches) {
  write(3, 28, std::string("\1\2\3", 3));
  const FashionMnist data(folder_, FashionMnist::Part::Test);
  EXPECT_EQ(data.size(), 3U);
  const auto batch = data.batch({2, 0}, at::kCPU);
  EXPECT_EQ(batch.images.sizes(), (std::vector<std::int64_t>{2, 1, 28, 28}));
  EXPECT_NEAR(batch.images[0][0][0][0].item<float>(), (120.0 / 255 - 0.2860) / 0.3530, 1e-5);
  EXPECT_TRUE(batch.labels.equal(at::tensor({3, 1}, at::kLong)));
  EXPECT_EQ(FashionMnist(folder_, FashionMnist::Part::Test, 2).size(), 2U);
}

TEST_F(FashionMnistFiles, refuses_files_that_do_not_fit_each_other) {
  EXPECT_TRUE(says(refused(), "there is no t10k-images-idx3-ubyte"));
  write(3, 28, std::string("\1\2", 2));
  EXPECT_TRUE(says(refused(), "3 images")) << refused();
  write(2, 27, std::string("\1\2", 2));
  EXPECT_TRUE(says(refused(), "28 x 28"));
  write(2, 28, std::string("\1\12", 2));
  EXPECT_TRUE(says(refused(), "above 9"));
  write(0, 28, "");
  EXPECT_TRUE(says(refused(), "28 x 28"));
}

}  // namespace
}  // namespace examples
