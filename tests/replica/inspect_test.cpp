// SPDX-License-Identifier: Apache-2.0
// `lockstep inspect`, run as a user runs it, on files that LibTorch's own functions have written.
#include <sys/wait.h>
#include <torch/csrc/jit/serialization/pickle.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "lockstep/optim/adam.h"
#include "replica/flip.h"
#include "support/models.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using test::mentions;

class Inspect : public ::testing::Test {
 protected:
  Inspect() : folder_(fs::temp_directory_path() / ("lockstep_inspect_" + std::to_string(::getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Inspect() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const {
    fs::create_directories((folder_ / name).parent_path());
    return (folder_ / name).string();
  }

  template <class Saved>
  std::string saved(const std::string& name, const Saved& value) const {
    torch::serialize::OutputArchive archive;
    value.save(archive);
    archive.save_to(path(name));
    return path(name);
  }

  std::string written(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }

  /// The exit code; `output_` is what was printed.
  int inspect(const std::string& arguments) {
    const auto command = std::string(std::getenv("LOCKSTEP_BIN")) + "/lockstep inspect " + arguments + " 2>&1";
    auto* pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> block;
    output_.clear();
    while (const auto size = std::fread(block.data(), 1, block.size(), pipe)) {
      output_.append(block.data(), size);
    }
    return WEXITSTATUS(::pclose(pipe));
  }

  std::string output_;

 private:
  fs::path folder_;
};

TEST_F(Inspect, equal_modules_are_equal_and_one_bit_is_named) {
  auto net = test::mlp(1);
  const auto first = saved("first.pt", *net);
  const auto again = saved("again.pt", *net);
  EXPECT_EQ(inspect(first + " " + again), 0) << output_;
  EXPECT_TRUE(mentions(output_, "again.pt equals")) << output_;
  net->parameters()[0].detach().zero_();
  const auto zeros = saved("zeros.pt", *net);
  test::flip_bit(net->parameters()[0], 8, 22);
  EXPECT_EQ(inspect(zeros + " " + saved("other.pt", *net)), 1) << output_;
  EXPECT_TRUE(mentions(output_,
                       "0.weight at [1, 2]: 5.87747175e-39 (0x00400000) instead of 0 (0x00000000); "
                       "1 of 60 elements differ"))
      << output_;
}

TEST_F(Inspect, shapes_and_missing_tensors_are_told) {
  const auto small = saved("small.pt", *test::mlp(1, 6, 10, 3));
  const auto wide = saved("wide.pt", *test::mlp(1, 6, 10, 4));
  EXPECT_EQ(inspect(small + " " + wide), 1);
  EXPECT_TRUE(mentions(output_, "4.weight is Float [4, 10] instead of Float [3, 10]")) << output_;
  const auto shorter = saved("shorter.pt", *torch::nn::Sequential(torch::nn::Linear(6, 10)));
  EXPECT_EQ(inspect("--limit 5 " + small + " " + shorter), 1);
  EXPECT_TRUE(mentions(output_, "2.weight is missing")) << output_;
  EXPECT_TRUE(mentions(output_, "more")) << output_;
  EXPECT_EQ(inspect(shorter + " " + small), 1);
  EXPECT_TRUE(mentions(output_, "4.bias is not in the first")) << output_;
}

/// An optimizer after some steps, on memory of its own: the file's addresses differ from any other's.
std::unique_ptr<optim::AdamW> stepped(torch::nn::Sequential& net) {
  auto optimizer = std::make_unique<optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(0.1));
  for (int step = 0; step < 2; ++step) {
    net->forward(at::ones({1, 6})).sum().backward();
    optimizer->step();
  }
  return optimizer;
}

TEST_F(Inspect, optimizers_are_compared_by_place_not_by_address) {
  auto one = test::mlp(1);
  auto two = test::mlp(1);
  const auto a = stepped(one);
  const auto b = stepped(two);
  const auto first = saved("a.pt", *a);
  EXPECT_EQ(inspect(first + " " + saved("b.pt", *b)), 0) << output_;
  auto& state = static_cast<torch::optim::AdamWParamState&>(*b->state().at(two->parameters()[3].unsafeGetTensorImpl()));
  test::flip_bit(state.exp_avg(), 4, 0);
  b->param_groups()[0].options().set_lr(0.2);
  EXPECT_EQ(inspect(first + " " + saved("c.pt", *b)), 1);
  EXPECT_TRUE(mentions(output_, "state.0/3.exp_avg at [4]: ")) << output_;
  EXPECT_TRUE(mentions(output_, "lr is 0.2")) << output_;
}

TEST_F(Inspect, folders_are_compared_file_by_file) {
  for (const std::string rank : {"rank0/", "rank1/"}) {
    saved(rank + "model.pt", *test::mlp(1));
    written(rank + "notes.txt", "step 5");
  }
  EXPECT_EQ(inspect(path("rank0") + " " + path("rank1")), 0) << output_;
  written("rank1/notes.txt", "step 6");
  written("rank1/more.txt", "");
  EXPECT_EQ(inspect(path("rank0") + " " + path("rank1")), 1);
  EXPECT_TRUE(mentions(output_, "byte 5 is the first that differs; 6 bytes instead of 6")) << output_;
  EXPECT_TRUE(mentions(output_, "the file is not in the first folder")) << output_;
  EXPECT_TRUE(mentions(output_, "rank1/model.pt equals")) << output_;
}

TEST_F(Inspect, one_file_is_compared_with_every_rank_s) {
  const auto reference = saved("model.pt", *test::mlp(1));
  saved("ranks/0.pt", *test::mlp(1));
  saved("ranks/1.pt", *test::mlp(2));
  EXPECT_EQ(inspect(reference + " " + path("ranks")), 1);
  EXPECT_TRUE(mentions(output_, "ranks/0.pt equals")) << output_;
  EXPECT_TRUE(mentions(output_, "ranks/1.pt differs")) << output_;
}

TEST_F(Inspect, pickled_values_are_read_too) {
  const auto pickled = [&](const std::string& name, double value) {
    c10::Dict<std::string, at::Tensor> dict;
    dict.insert("weight", at::full({2}, value));
    const auto bytes = torch::jit::pickle_save(dict);
    return written(name, std::string(bytes.begin(), bytes.end()));
  };
  EXPECT_EQ(inspect(pickled("a.pt", 1) + " " + pickled("b.pt", 1)), 0) << output_;
  EXPECT_EQ(inspect(path("a.pt") + " " + pickled("c.pt", 2)), 1);
  EXPECT_TRUE(mentions(output_, "weight at [0]: 2 (0x40000000) instead of 1 (0x3f800000); 2 of 2")) << output_;
}

TEST_F(Inspect, a_single_file_is_listed) {
  EXPECT_EQ(inspect(saved("a.pt", *test::mlp(1))), 0);
  EXPECT_TRUE(mentions(output_, "0.weight: Float [10, 6] digest ")) << output_;
}

TEST_F(Inspect, mistakes_and_broken_files_are_two) {
  const auto whole = saved("whole.pt", *test::mlp(1));
  EXPECT_EQ(inspect(""), 2) << output_;
  EXPECT_EQ(inspect(whole + " " + path("absent.pt")), 2) << output_;
  EXPECT_TRUE(mentions(output_, "absent.pt' does not exist")) << output_;
  std::ifstream in(whole, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  EXPECT_EQ(inspect(whole + " " + written("half.pt", bytes.substr(0, bytes.size() / 2))), 2) << output_;
  EXPECT_TRUE(mentions(output_, "half.pt' cannot be read")) << output_;
  EXPECT_EQ(inspect(path("ranks/") + " " + whole), 2) << output_;
}

}  // namespace
}  // namespace lockstep
