// SPDX-License-Identifier: Apache-2.0
#include "support/fashion_mnist.h"

#include <ATen/ATen.h>
#include <lockstep/error.h>

#include <algorithm>
#include <string>

#include "support/idx_file.h"

namespace examples {
namespace {

constexpr int kSide = 28;
constexpr int kClasses = 10;
// Of the 60,000 training images, with pixels from 0 to 1.
constexpr double kMean = 0.2860;
constexpr double kDeviation = 0.3530;

template <class Text>
void check(bool ok, Text&& text) {
  if (!ok) {
    throw lockstep::InputError("[fashion_mnist] " + text());
  }
}

std::filesystem::path find(const std::filesystem::path& folder, const std::string& name) {
  const auto plain = folder / name;
  const auto gzipped = folder / (name + ".gz");
  check(std::filesystem::exists(plain) || std::filesystem::exists(gzipped), [&] {
    return "there is no " + name + " or " + name + ".gz in " + folder.string() +
           "; install the package dataset-fashion-mnist, or give the folder with --data";
  });
  return std::filesystem::exists(plain) ? plain : gzipped;
}

}  // namespace

FashionMnist::FashionMnist(const std::filesystem::path& folder, Part part, std::size_t limit) {
  const std::string prefix = part == Part::Train ? "train" : "t10k";
  const auto images_file = find(folder, prefix + "-images-idx3-ubyte");
  const auto labels_file = find(folder, prefix + "-labels-idx1-ubyte");
  images_ = read_idx(images_file, 3);
  labels_ = read_idx(labels_file, 1).to(at::kLong);
  check(images_.size(0) == labels_.size(0), [&] {
    return images_file.string() + " holds " + std::to_string(images_.size(0)) + " images, but " + labels_file.string() +
           " " + std::to_string(labels_.size(0)) + " labels";
  });
  check(images_.size(0) > 0 && images_.size(1) == kSide && images_.size(2) == kSide,
        [&] { return images_file.string() + " holds no images of 28 x 28 pixels"; });
  check(labels_.max().item<std::int64_t>() < kClasses, [&] { return labels_file.string() + " holds labels above 9"; });
  const auto kept = limit == 0 ? labels_.size(0) : std::min(labels_.size(0), static_cast<std::int64_t>(limit));
  images_ = images_.unsqueeze(1).slice(0, 0, kept);
  labels_ = labels_.slice(0, 0, kept);
}

Batch FashionMnist::batch(const std::vector<std::size_t>& indices, c10::Device device) const {
  auto index = at::empty({static_cast<std::int64_t>(indices.size())}, at::kLong);
  std::copy(indices.begin(), indices.end(), index.mutable_data_ptr<std::int64_t>());
  auto images = images_.index_select(0, index).to(device).to(at::kFloat);
  images.sub_(255 * kMean).div_(255 * kDeviation);
  return {images, labels_.index_select(0, index).to(device)};
}

}  // namespace examples
