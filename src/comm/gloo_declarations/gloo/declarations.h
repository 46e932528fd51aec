// SPDX-License-Identifier: Apache-2.0
// The part of gloo's interface that ProcessGroupGloo.hpp and Lockstep name, declared from the exported symbols of
// libtorch_cpu. Objects of these types are only reached through pointers; none is created or sized here.
#pragma once
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace gloo {
namespace transport {
class Device;
class UnboundBuffer;
class Pair {
 public:
  virtual ~Pair() = 0;
};
namespace tcp {
class Pair : public ::gloo::transport::Pair {
 public:
  // Ends every operation in flight on this pair: their waiters throw an exception with this text.
  std::exception_ptr signalExceptionExternal(const std::string& text);
};
}  // namespace tcp
}  // namespace transport

namespace rendezvous {
class Store {
 public:
  virtual ~Store();
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) = 0;
};
}  // namespace rendezvous

class Context {
 public:
  const int rank;
  const int size;
  int base;
  void setTimeout(std::chrono::milliseconds timeout);
  std::unique_ptr<transport::Pair>& getPair(int peer);
};
}  // namespace gloo
