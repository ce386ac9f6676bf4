// What the encoders' bindings share: blocks of documents in, arrays of ids out.
#pragma once

#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind.hpp"
#include "core/bpe/bpe_encoder.hpp"

namespace tokpack {

using SpanRows = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

struct Encoded {
  py::array ids, lengths, special, offsets, unplaced;
};

class EncoderBinding {
 public:
  Encoded encode(const py::buffer& data, const SpanRows& spans, std::vector<std::uint32_t> before,
                 std::vector<std::uint32_t> after, bool offsets) {
    if (spans.ndim() != 2 || spans.shape(1) != 2) {
      throw py::value_error("spans must have shape [n, 2]: begin, end");
    }
    const Frame frame{std::move(before), std::move(after)};
    for (const auto& side : {frame.before, frame.after}) {
      for (const std::uint32_t id : side) {
        if (id < (wide_ ? BpeModel::kIdLimit : 65536u)) continue;
        throw py::value_error("id " + std::to_string(id) + " does not fit the dtype");
      }
    }
    return wide_ ? encode_into(wide_ids_, data, spans, frame, offsets)
                 : encode_into(narrow_ids_, data, spans, frame, offsets);
  }

  py::dict cache_info() const {
    const auto info = encoder_->cache_info();
    py::dict dict;
    dict["words"] = info.words;
    dict["bytes"] = info.bytes;
    dict["misses"] = info.misses;
    return dict;
  }

 protected:
  // Throws ValueError for a dtype that ids cannot have.
  explicit EncoderBinding(const std::string& dtype) : wide_(dtype == "int32") {
    if (!wide_ && dtype != "uint16") {
      throw py::value_error("dtype '" + dtype + "' is neither uint16 nor int32");
    }
  }

  bool wide_;
  std::unique_ptr<BpeEncoder> encoder_;

 private:
  template <class Out>
  Encoded encode_into(Shared<Out>& scratch, const py::buffer& data, const SpanRows& rows,
                      const Frame& frame, bool with_offsets) {
    static_assert(sizeof(Span) == 2 * sizeof(std::int64_t));
    const Bytes bytes(data);
    const auto count = static_cast<std::size_t>(rows.shape(0));
    const std::span<const Span> spans(reinterpret_cast<const Span*>(rows.data()), count);
    if (busy_.exchange(true)) {
      throw std::runtime_error("encode was called while another thread is in it");
    }
    auto ids = scratch.take();
    auto lengths = lengths_.take();
    std::vector<std::int64_t> special, unplaced;
    try {
      const py::gil_scoped_release release;
      encoder_->encode(
          bytes.span(), spans, frame,
          {ids.get(), lengths.get(), &special, with_offsets ? &offsets_ : nullptr, &unplaced});
    } catch (...) {
      busy_ = false;
      throw;
    }
    busy_ = false;
    const auto tokens = static_cast<py::ssize_t>(ids->size());
    const auto documents = static_cast<py::ssize_t>(lengths->size());
    if (!with_offsets) offsets_.clear();
    return {scratch.give(std::move(ids), {tokens}), lengths_.give(std::move(lengths), {documents}),
            numbers(special), rows_of(offsets_), numbers(unplaced)};
  }

  static py::array numbers(const std::vector<std::int64_t>& values) {
    return py::array_t<std::int64_t>(static_cast<py::ssize_t>(values.size()), values.data());
  }

  static py::array rows_of(const Buffer<TokenOffset>& offsets) {
    static_assert(sizeof(TokenOffset) == 2 * sizeof(std::int32_t));
    py::array_t<std::int32_t> rows({static_cast<py::ssize_t>(offsets.size()), py::ssize_t{2}});
    if (offsets.size() != 0) {
      std::memcpy(rows.mutable_data(), offsets.data(), offsets.size() * sizeof(TokenOffset));
    }
    return rows;
  }

  Shared<std::uint16_t> narrow_ids_;
  Shared<std::int32_t> wide_ids_;
  Shared<std::int32_t> lengths_;
  Buffer<TokenOffset> offsets_;  // of the last call that asked for them
  std::atomic<bool> busy_ = false;
};

}  // namespace tokpack
