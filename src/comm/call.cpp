// SPDX-License-Identifier: Apache-2.0
#include "comm/call.h"

#include "core/check.h"

namespace lockstep::comm {
namespace {

// The finalizer of splitmix64: every input bit reaches every output bit.
std::uint64_t mix(std::uint64_t state, std::uint64_t value) {
  state = (state + value + 0x9e3779b97f4a7c15ULL) ^ (state << 7);
  state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9ULL;
  state = (state ^ (state >> 27)) * 0x94d049bb133111ebULL;
  return state ^ (state >> 31);
}

bool reduces(Operation operation) {
  return operation == Operation::AllReduce || operation == Operation::ReduceScatter;
}

}  // namespace

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"all_reduce", "broadcast", "all_gather", "reduce_scatter", "barrier"};
  return kNames[static_cast<int>(operation)];
}

const char* name_of(ReduceOp op) {
  constexpr const char* kNames[] = {"sum", "average", "min", "max"};
  return kNames[static_cast<int>(op)];
}

std::uint32_t Call::signature() const {
  std::uint64_t state = static_cast<std::uint64_t>(operation);
  for (const auto value :
       {static_cast<std::uint64_t>(dtype), static_cast<std::uint64_t>(elements), static_cast<std::uint64_t>(op),
        static_cast<std::uint64_t>(root), static_cast<std::uint64_t>(label.tag)}) {
    state = mix(state, value);
  }
  return static_cast<std::uint32_t>(state);
}

std::string Call::describe() const {
  std::string text = core::str(name_of(operation), " #", number);
  if (!label.name.empty()) {
    text += core::str(" '", label.name, "'");
  }
  if (operation != Operation::Barrier) {
    text += core::str(" (", elements, " ", c10::toString(dtype));
    text += reduces(operation) ? core::str(", ", name_of(op)) : std::string();
    text += operation == Operation::Broadcast ? core::str(", root ", root) : std::string();
    text += label.tag != 0 ? core::str(", tag ", label.tag, ")") : std::string(")");
  } else if (label.tag != 0) {
    text += core::str(" (tag ", label.tag, ")");
  }
  return text;
}

}  // namespace lockstep::comm
