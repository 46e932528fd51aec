// SPDX-License-Identifier: Apache-2.0
// The command `lockstep inspect`: what is in a checkpoint, and where two of them differ. Exit code 0: equal (or
// listed), 1: different, 2: a mistake in the arguments, or a file that cannot be read.
#include <CLI/CLI.hpp>
#include <exception>
#include <iostream>

#include "core/check.h"
#include "core/digest.h"
#include "lockstep/error.h"
#include "lockstep/inspect_compare.h"

namespace {

namespace in = lockstep::inspect;

constexpr int kEqual = 0;
constexpr int kDifferent = 1;
constexpr int kError = 2;

void list(const std::string& file) {
  if (!in::is_archive(file)) {
    std::cout << file << ": no archive\n";
    return;
  }
  for (const auto& item : in::items_of(file)) {
    std::cout << item.path << ": ";
    if (item.tensor.defined()) {
      std::cout << c10::toString(item.tensor.scalar_type()) << " " << item.tensor.sizes() << " digest "
                << lockstep::core::digest_text(lockstep::core::digest(item.tensor)) << "\n";
    } else {
      std::cout << item.text << "\n";
    }
  }
}

void print(const std::pair<std::string, std::string>& pair, const in::Comparison& found, std::size_t limit) {
  const auto& name = pair.second.empty() ? pair.first : pair.second;
  if (found.equal()) {
    std::cout << name << " equals " << pair.first << ": " << found.pieces << " tensors and values\n";
    return;
  }
  std::cout << name << " differs" << (pair.first.empty() || pair.second.empty() ? "" : " from " + pair.first) << ":\n";
  for (std::size_t i = 0; i < found.differences.size() && i < limit; ++i) {
    std::cout << "  " << found.differences[i] << "\n";
  }
  if (found.differences.size() > limit) {
    std::cout << "  and " << found.differences.size() - limit << " more\n";
  }
}

int inspect(const std::vector<std::string>& paths, std::size_t limit) {
  if (paths.size() == 1) {
    for (const auto& [file, same] : in::pairs_of(paths[0], paths[0])) {
      list(file);
    }
    return kEqual;
  }
  int code = kEqual;
  for (std::size_t i = 1; i < paths.size(); ++i) {
    for (const auto& pair : in::pairs_of(paths[0], paths[i])) {
      const auto found = in::compare_files(pair.first, pair.second);
      print(pair, found, limit);
      code = found.equal() ? code : kDifferent;
    }
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Shows what is in a checkpoint, or compares checkpoints bit by bit: files by torch::save, or folders.",
               "lockstep inspect");
  std::vector<std::string> paths;
  std::size_t limit = 10;
  app.add_option("path", paths, "one: list it; more: compare each with the first")->required();
  app.add_option("--limit", limit, "differences to print for each pair of files")->capture_default_str();
  try {
    app.parse(argc, argv);
    return inspect(paths, limit);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kEqual : kError;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return kError;
  }
}
