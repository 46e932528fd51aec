// SPDX-License-Identifier: Apache-2.0
#include "ddp/verify.h"

#include <span>
#include <sstream>

#include "core/check.h"
#include "core/digest.h"

namespace lockstep::ddp {
namespace {

using core::str;

std::string describe(const char* kind, const NamedTensor& named) {
  const auto& t = named.tensor;
  return str(kind, " ", named.name, ": ", t.sizes(), " strides ", t.strides(), " ", c10::toString(t.scalar_type()),
             t.requires_grad() ? " trainable" : " not trainable");
}

/// A line per tensor; names cannot hold a newline, since they are made of identifiers and dots.
std::string describe(const ModelTensors& tensors) {
  std::string text;
  for (const auto& p : tensors.parameters) {
    text += describe("parameter", p) + "\n";
  }
  for (const auto& b : tensors.buffers) {
    text += describe("buffer", b) + "\n";
  }
  return text;
}

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    result.push_back(line);
  }
  return result;
}

std::string line_or_nothing(const std::vector<std::string>& all, std::size_t index) {
  return index < all.size() ? str("'", all[index], "'") : std::string("nothing");
}

[[noreturn]] void report_first_difference(const std::vector<std::string>& texts, std::size_t rank) {
  const auto theirs = lines(texts[rank]);
  const auto first = lines(texts[0]);
  std::size_t i = 0;
  while (i < theirs.size() && i < first.size() && theirs[i] == first[i]) {
    ++i;
  }
  core::fail("ddp.construct", {str("the model of rank ", rank, " differs from rank 0's at tensor ", i, " (",
                                   theirs.size(), " tensors against ", first.size(), ")"),
                               line_or_nothing(theirs, i), str(line_or_nothing(first, i), " as on rank 0"),
                               "build the same model on every rank"});
}

std::string fingerprint(const std::string& text) {
  return core::digest_text(core::digest_bytes(std::as_bytes(std::span(text))));
}

}  // namespace

std::vector<std::string> gather_or_throw(const World& world, const std::string& text, const std::string& problem,
                                         const std::string& label) {
  auto texts = world.all_gather_text(problem.empty() ? text : problem, {.name = label});
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].starts_with("[")) {
      throw InputError(world.size() == 1 ? texts[rank] : str(texts[rank], " (rank ", rank, ")"));
    }
  }
  return texts;
}

void verify_across_ranks(const World& world, const ModelTensors& tensors, const std::string& local_error) {
  const auto description = describe(tensors);
  // Fingerprints first: for a big model on many ranks the full texts would be megabytes.
  const auto verdicts = gather_or_throw(world, fingerprint(description), local_error, "model fingerprint");
  std::size_t differing = 0;
  while (differing < verdicts.size() && verdicts[differing] == verdicts[0]) {
    ++differing;
  }
  if (differing < verdicts.size()) {
    report_first_difference(world.all_gather_text(description, {.name = "model description"}), differing);
  }
}

}  // namespace lockstep::ddp
