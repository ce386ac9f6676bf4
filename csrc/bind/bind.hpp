// What the binding files share: registration functions and conversions.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/base/cpu.hpp"
#include "core/text/normal_forms.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {

namespace py = pybind11;

void bind_json(py::module_& module);           // JsonLines, JsonValues, json_column and more
void bind_text(py::module_& module);           // patterns, Pretokenizer, normalize
void bind_bpe(py::module_& module);            // ByteLevelBPE, simd_levels
void bind_sentencepiece(py::module_& module);  // PieceModel, PieceEncoder
void bind_megatron(py::module_& module);       // RandomState, SampleWalk, megatron_blend
void bind_samples(py::module_& module);        // mix, Permutation, BlendOrder, DocumentOrder
void bind_gather(py::module_& module);         // TokenFile, Assembly, ArrayPool and more
void bind_packing(py::module_& module);        // pack, Packing
void bind_documents(py::module_& module);      // band_hashes, equal_pairs, Phrases and more

// A contiguous readable buffer held for as long as this object lives.
class Bytes {
 public:
  explicit Bytes(const py::buffer& source) : info_(source.request()) {
    py::ssize_t expected = info_.itemsize;
    for (py::ssize_t i = info_.ndim; i-- > 0;) {
      if (info_.shape[static_cast<std::size_t>(i)] > 1 &&
          info_.strides[static_cast<std::size_t>(i)] != expected) {
        throw py::value_error("the buffer must be contiguous");
      }
      expected *= info_.shape[static_cast<std::size_t>(i)];
    }
  }
  std::span<const std::uint8_t> span() const {
    return {static_cast<const std::uint8_t*>(info_.ptr),
            static_cast<std::size_t>(info_.size * info_.itemsize)};
  }

 private:
  py::buffer_info info_;
};

inline void require_utf8(std::span<const std::uint8_t> text) {
  if (!utf8_check(best_level())(text.data(), text.size())) {
    throw py::value_error("the text is not valid UTF-8");
  }
}

inline NormalForm parse_form(const std::string& name) {
  const auto form = normal_form_by_name(name);
  if (!form) throw py::value_error("normal form '" + name + "' is none of NFC, NFD, NFKC, NFKD");
  return *form;
}

inline Level parse_level(const std::string& name) {
  const auto level = level_by_name(name);
  if (!level) {
    throw py::value_error("level '" + name + "' is unknown, or this machine does not have it");
  }
  return *level;
}

// Scratch memory for results: used again by a later call when no array holds it any more.
template <class T>
class Shared {
 public:
  using Lease = std::shared_ptr<Buffer<T>>;

  // An empty buffer that nobody else uses until give(). Call with the GIL held.
  Lease take() {
    for (Lease& buffer : idle_) {
      if (buffer && buffer.use_count() == 1) {
        Lease lease = std::exchange(buffer, nullptr);
        if (lease->capacity() > kMaxIdleBytes / sizeof(T)) continue;
        lease->clear();
        return lease;
      }
    }
    return std::make_shared<Buffer<T>>();
  }

  // A read-only array over the buffer's first elements, which keeps them alive. With the GIL held.
  py::array give(Lease buffer, std::vector<py::ssize_t> shape) {
    auto owner = std::make_unique<Lease>(buffer);
    const py::capsule capsule(owner.get(), [](void* p) { delete static_cast<Lease*>(p); });
    owner.release();
    static T none{};  // numpy allocates and copies when it is given a null pointer
    py::array_t<T> array(std::move(shape), buffer->data() ? buffer->data() : &none, capsule);
    array.attr("setflags")(py::arg("write") = false);
    idle_[next_++ % idle_.size()] = std::move(buffer);
    return array;
  }

 private:
  // One huge document must not cost its memory for the rest of a run.
  static constexpr std::size_t kMaxIdleBytes = std::size_t{64} << 20;

  // Two, because a loop still holds the arrays of one call while it makes the next.
  std::array<Lease, 2> idle_;
  std::size_t next_ = 0;
};

}  // namespace tokpack
