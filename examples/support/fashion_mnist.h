// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <filesystem>
#include <vector>

namespace examples {

/// Where Debian's and Ubuntu's package dataset-fashion-mnist puts its files.
inline constexpr const char* kFashionMnistFolder = "/usr/share/datasets/fashion-mnist";

/// Images and the class (0 to 9) of each.
struct Batch {
  /// float32 [n, 1, 28, 28], of mean 0 and deviation 1 over the training images.
  at::Tensor images;
  /// int64 [n].
  at::Tensor labels;
};

/// One part of Fashion-MNIST, held as bytes: 60,000 training or 10,000 test images of 28 x 28 pixels.
class FashionMnist {
 public:
  enum class Part { Train, Test };

  /// Reads `train-` or `t10k-images-idx3-ubyte` and `-labels-idx1-ubyte`, plain or gzipped, from `folder`.
  /// `limit`: keep only the first so many images; 0: all.
  /// Throws lockstep::InputError that names the file which is missing, damaged, or does not fit the other.
  FashionMnist(const std::filesystem::path& folder, Part part, std::size_t limit = 0);

  std::size_t size() const { return static_cast<std::size_t>(labels_.size(0)); }

  /// The samples of these indices, on `device`.
  Batch batch(const std::vector<std::size_t>& indices, c10::Device device) const;

 private:
  at::Tensor images_;  // uint8 [n, 1, 28, 28]
  at::Tensor labels_;  // int64 [n]
};

}  // namespace examples
