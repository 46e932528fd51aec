// SPDX-License-Identifier: Apache-2.0
// Tensors in containers in containers: what mixed precision does to one tensor, it does to all that a model takes or
// returns.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lockstep::amp {

/// How to apply a function to the tensors inside a T. Specialise it for a batch type of your own: set `holds_tensors`
/// and define `map`. Types without a specialisation hold no tensors and pass through unchanged.
template <class T>
struct Nested {
  static constexpr bool holds_tensors = false;
};

/// True where T is a tensor or a container (or a specialised type) with tensors in it.
template <class T>
inline constexpr bool holds_tensors = Nested<std::remove_cvref_t<T>>::holds_tensors;

/// A copy of `value` in which each tensor `t`, undefined ones excepted, is `fn(t)`.
template <class T, class Fn>
T map_tensors(const T& value, const Fn& fn) {
  if constexpr (holds_tensors<T>) {
    return Nested<T>::map(value, fn);
  } else {
    return value;
  }
}

template <>
struct Nested<at::Tensor> {
  static constexpr bool holds_tensors = true;
  template <class Fn>
  static at::Tensor map(const at::Tensor& value, const Fn& fn) {
    return value.defined() ? fn(value) : value;
  }
};

template <class T>
struct Nested<std::optional<T>> {
  static constexpr bool holds_tensors = Nested<T>::holds_tensors;
  template <class Fn>
  static std::optional<T> map(const std::optional<T>& value, const Fn& fn) {
    return value ? std::optional<T>(map_tensors(*value, fn)) : std::nullopt;
  }
};

template <class T>
struct Nested<std::vector<T>> {
  static constexpr bool holds_tensors = Nested<T>::holds_tensors;
  template <class Fn>
  static std::vector<T> map(const std::vector<T>& value, const Fn& fn) {
    std::vector<T> out;
    out.reserve(value.size());
    for (const auto& item : value) {
      out.push_back(map_tensors(item, fn));
    }
    return out;
  }
};

template <class T, std::size_t N>
struct Nested<std::array<T, N>> {
  static constexpr bool holds_tensors = Nested<T>::holds_tensors;
  template <class Fn>
  static std::array<T, N> map(std::array<T, N> value, const Fn& fn) {
    for (auto& item : value) {
      item = map_tensors(item, fn);
    }
    return value;
  }
};

template <class A, class B>
struct Nested<std::pair<A, B>> {
  static constexpr bool holds_tensors = Nested<A>::holds_tensors || Nested<B>::holds_tensors;
  template <class Fn>
  static std::pair<A, B> map(const std::pair<A, B>& value, const Fn& fn) {
    return {map_tensors(value.first, fn), map_tensors(value.second, fn)};
  }
};

template <class... Ts>
struct Nested<std::tuple<Ts...>> {
  static constexpr bool holds_tensors = (Nested<Ts>::holds_tensors || ...);
  template <class Fn>
  static std::tuple<Ts...> map(const std::tuple<Ts...>& value, const Fn& fn) {
    return std::apply([&](const auto&... item) { return std::tuple<Ts...>(map_tensors(item, fn)...); }, value);
  }
};

namespace detail {

/// Maps whose keys stay as they are.
template <class Map>
struct NestedMap {
  static constexpr bool holds_tensors = Nested<typename Map::mapped_type>::holds_tensors;
  template <class Fn>
  static Map map(Map value, const Fn& fn) {
    for (auto& entry : value) {
      entry.second = map_tensors(entry.second, fn);
    }
    return value;
  }
};

}  // namespace detail

template <class K, class V, class C, class A>
struct Nested<std::map<K, V, C, A>> : detail::NestedMap<std::map<K, V, C, A>> {};

template <class K, class V, class H, class E, class A>
struct Nested<std::unordered_map<K, V, H, E, A>> : detail::NestedMap<std::unordered_map<K, V, H, E, A>> {};

}  // namespace lockstep::amp
