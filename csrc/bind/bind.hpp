// What the binding files share: registration functions and conversions.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/cpu.hpp"

namespace tokpack {

namespace py = pybind11;

void bind_json(py::module_& module);  // JsonLines, JsonArray, split_lines, invalid_utf8
void bind_text(py::module_& module);  // patterns, pretokenize, nfc
void bind_bpe(py::module_& module);   // ByteLevelBPE, simd_levels

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

inline Level parse_level(const std::string& name) {
  const auto level = level_by_name(name);
  if (!level) {
    throw py::value_error("level '" + name + "' is unknown, or this machine does not have it");
  }
  return *level;
}

// Memory that numpy arrays may keep alive after the next call has moved on to other memory.
template <class T>
class Shared {
 public:
  // The vector to fill: the last one again when no array holds it, else a new one.
  std::vector<T>& fresh() {
    if (!data_ || data_.use_count() > 1) data_ = std::make_shared<std::vector<T>>();
    return *data_;
  }
  // A read-only array over the first `size` elements.
  py::array view(std::vector<py::ssize_t> shape) const {
    auto* owner = new std::shared_ptr<std::vector<T>>(data_);
    py::capsule capsule(owner,
                        [](void* p) { delete static_cast<std::shared_ptr<std::vector<T>>*>(p); });
    py::array_t<T> array(std::move(shape), data_->data(), capsule);
    array.attr("setflags")(py::arg("write") = false);
    return array;
  }

 private:
  std::shared_ptr<std::vector<T>> data_;
};

}  // namespace tokpack
