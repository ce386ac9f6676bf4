// What the bindings of orders of samples share: arrays and what is located in them.
#pragma once

#include <cstring>

#include "bind/bind.hpp"

namespace tokpack {

template <class T>
using Array = py::array_t<T, py::array::c_style>;
using Int64s = Array<std::int64_t>;

inline bool is_aligned(const py::array& array, std::size_t alignment) {
  return reinterpret_cast<std::uintptr_t>(array.data()) % alignment == 0;
}

template <class T>
bool is_aligned(const Array<T>& array) {
  return is_aligned(array, alignof(T));
}

// The elements of an array; ValueError with its name unless it has one dimension and is aligned.
template <class T>
std::span<const T> vector_of(const Array<T>& array, const char* name) {
  if (array.ndim() != 1 || !is_aligned(array)) {
    throw py::value_error(std::string(name) + " must be an aligned array of one dimension");
  }
  return {array.data(), static_cast<std::size_t>(array.size())};
}

// The bytes of the tokens of each document, which may be unaligned: those in an .idx are.
inline std::span<const std::uint8_t> lengths_of(const Array<std::int32_t>& lengths) {
  if (lengths.ndim() != 1) throw py::value_error("the lengths must have one dimension");
  return {reinterpret_cast<const std::uint8_t*>(lengths.data()),
          static_cast<std::size_t>(lengths.nbytes())};
}

// i as an index below `size`, or IndexError, which says what is numbered.
inline std::uint64_t checked(std::int64_t i, std::uint64_t size, const char* what) {
  if (i < 0 || static_cast<std::uint64_t>(i) >= size) {
    throw py::index_error(std::string(what) + " " + std::to_string(i) + " of " +
                          std::to_string(size));
  }
  return static_cast<std::uint64_t>(i);
}

// A copy of structures of some 64-bit numbers as an array [n, numbers].
template <class Piece>
Int64s rows_of(const std::vector<Piece>& pieces) {
  constexpr std::size_t numbers = sizeof(Piece) / sizeof(std::int64_t);
  static_assert(sizeof(Piece) == numbers * sizeof(std::int64_t));
  Int64s rows({static_cast<py::ssize_t>(pieces.size()), py::ssize_t{numbers}});
  if (!pieces.empty())
    std::memcpy(rows.mutable_data(), pieces.data(), pieces.size() * sizeof(Piece));
  return rows;
}

// The pieces of all samples, one after the other, as an array [n, 3], and how many each has. `find`
// is called without the GIL, with the samples and where pieces are appended and numbers written.
template <class Piece, class Find>
py::tuple located(std::span<const std::int64_t> samples, std::int64_t known, Find&& find) {
  for (const std::int64_t sample : samples) {
    checked(sample, static_cast<std::uint64_t>(known), "sample");
  }
  thread_local std::vector<Piece> pieces;
  pieces.clear();
  Int64s counts(static_cast<py::ssize_t>(samples.size()));
  const std::span<std::int64_t> numbers(counts.mutable_data(), samples.size());
  {
    const py::gil_scoped_release release;
    find(samples, pieces, numbers);
  }
  return py::make_tuple(rows_of(pieces), std::move(counts));
}

}  // namespace tokpack
