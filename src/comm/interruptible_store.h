// SPDX-License-Identifier: Apache-2.0
// A store whose waits end when the world does. Groups are made over it: without it, a rank that dies while they are
// made leaves the others in the constructor of their backend until the timeout.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

#include "comm/watch.h"

namespace lockstep::comm {

class InterruptibleStore final : public c10d::Store {
 public:
  using Keys = std::vector<std::string>;
  using Bytes = std::vector<std::uint8_t>;
  using Milliseconds = std::chrono::milliseconds;

  InterruptibleStore(c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<Watch> watch)
      : Store(store->getTimeout()), store_(std::move(store)), watch_(std::move(watch)) {}

  // These end early, with the world's words.
  void wait(const Keys& keys, const Milliseconds& timeout) override;
  void wait(const Keys& keys) override { wait(keys, getTimeout()); }
  Bytes get(const std::string& key) override;
  std::vector<Bytes> multiGet(const Keys& keys) override;

  // These do not wait for other ranks.
  c10::intrusive_ptr<Store> clone() override;
  using Store::set;
  void set(const std::string& key, const Bytes& value) override { store_->set(key, value); }
  using Store::compareSet;
  Bytes compareSet(const std::string& key, const Bytes& expected, const Bytes& wanted) override {
    return store_->compareSet(key, expected, wanted);
  }
  std::int64_t add(const std::string& key, std::int64_t value) override { return store_->add(key, value); }
  bool deleteKey(const std::string& key) override { return store_->deleteKey(key); }
  bool check(const Keys& keys) override { return store_->check(keys); }
  std::int64_t getNumKeys() override { return store_->getNumKeys(); }
  void append(const std::string& key, const Bytes& value) override { store_->append(key, value); }
  void multiSet(const Keys& keys, const std::vector<Bytes>& values) override { store_->multiSet(keys, values); }
  bool hasExtendedApi() const override { return store_->hasExtendedApi(); }

 private:
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<Watch> watch_;
};

}  // namespace lockstep::comm
