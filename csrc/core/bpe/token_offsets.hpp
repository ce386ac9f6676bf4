// Where tokens lie in the text of their document, and which of them lie in spans of it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/base/buffer.hpp"
#include "core/text/places.hpp"

namespace tokpack {

// Finds where tokens lie, from the number of bytes that each id stands for. An encoder tells it of
// each stretch of text that it has encoded, in their order.
class TokenPlacer {
 public:
  // The bytes of the text that becomes an id. One that is not told stands for no known text.
  void set_size(std::uint32_t id, std::size_t size) {
    if (id >= sizes_.size()) sizes_.resize(id + std::size_t{1});
    sizes_[id] = static_cast<std::uint32_t>(size);
  }

  // What is placed from now on goes to `out`; nothing is while that is null.
  void set_output(Buffer<TokenOffset>* out) { out_ = out; }
  bool is_on() const { return out_ != nullptr; }

  void begin_document(const std::uint8_t* text, std::size_t size) {
    document_ = text;
    size_ = static_cast<std::int64_t>(size);
    is_placed_ = true;
    show_document();
  }

  // Whether it is known where all tokens of the document are.
  bool is_placed() const { return is_placed_; }

  // From now on texts are parts of the document.
  void show_document() {
    copy_ = document_;
    copy_begins_ = least_ = 0;
    is_known_ = true;
    places_ = nullptr;
  }
  // They are parts of a copy of what is at `source` in the document, with `prefix` bytes in front.
  void show_copy(const std::uint8_t* copy, const std::uint8_t* source, std::size_t prefix) {
    copy_ = copy;
    least_ = source - document_;
    copy_begins_ = least_ - static_cast<std::int64_t>(prefix);
  }
  // They are parts of a copy whose bytes are from these places of the document.
  void show_places(const std::uint8_t* copy, const Places* places) {
    copy_ = copy;
    copy_begins_ = least_ = 0;
    places_ = places;
  }
  // They are parts of a text of which that is not known.
  void show_other_text() { is_known_ = false; }

  // Where a part of the document begins in it.
  std::size_t begin_of(const std::uint8_t* part) const {
    return static_cast<std::size_t>(part - document_);
  }

  // The ids are those of text[0, size) with `prefix` spaces in front. A token of nothing but these
  // is where the first character is.
  template <class Id>
  void place(std::span<const Id> ids, const std::uint8_t* text, std::size_t size,
             std::size_t prefix) {
    const std::size_t first = out_->size();
    out_->resize(first + ids.size());
    TokenOffset* out = out_->data() + first;
    if (!is_known_) {
      is_placed_ = ids.empty() && is_placed_;
      std::fill_n(out, ids.size(), TokenOffset{0, 0});
      return;
    }
    const std::int64_t least = std::max(offset_of(text), least_);
    std::int64_t at = offset_of(text) - static_cast<std::int64_t>(prefix);
    const std::int64_t end = offset_of(text + size);
    for (const Id id : ids) {
      const std::int64_t begin = std::max(at, least);
      at += size_of(static_cast<std::uint32_t>(id));
      *out++ = places_ != nullptr ? place_of(begin, std::min(at, end))
                                  : offset(begin, at > begin ? at : character_end(begin));
    }
    is_placed_ = is_placed_ && at == end;
  }

  // The next ids stand for so many bytes each of what is laid out behind each other: its bytes are
  // from these places of text.
  void place_laid(std::span<const std::uint32_t> sizes, const std::uint8_t* text,
                  std::span<const TokenOffset> laid) {
    const auto begin = static_cast<std::int32_t>(offset_of(text));
    std::size_t at = 0;
    for (const std::uint32_t size : sizes) {
      const std::size_t end = at + size;
      is_placed_ = is_placed_ && is_known_ && size != 0 && end <= laid.size();
      if (!is_placed_) {
        out_->push_back({0, 0});
        continue;
      }
      const TokenOffset place{begin + laid[at].begin, begin + laid[end - 1].end};
      out_->push_back(places_ != nullptr ? place_of(place.begin, place.end) : place);
      at = end;
    }
    is_placed_ = is_placed_ && at == laid.size();
  }
  std::uint32_t size_of(std::uint32_t id) const { return id < sizes_.size() ? sizes_[id] : 0; }

  // An id that is cut out of the text as a whole.
  void place_one(const std::uint8_t* begin, const std::uint8_t* end) {
    is_placed_ = is_placed_ && is_known_;
    if (!is_known_) return out_->push_back({0, 0});
    const std::int64_t first = std::max(offset_of(begin), least_), last = offset_of(end);
    out_->push_back(places_ != nullptr ? place_of(first, last) : offset(first, last));
  }

  // Ids that are no part of the text.
  void place_outside(std::size_t count, std::size_t at) {
    const auto place = static_cast<std::int32_t>(at);
    for (std::size_t i = 0; i < count; ++i) out_->push_back({place, place});
  }

 private:
  static TokenOffset offset(std::int64_t begin, std::int64_t end) {
    return {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
  }
  std::int64_t offset_of(const std::uint8_t* text) const { return copy_begins_ + (text - copy_); }
  // Of bytes [begin, end) of a copy; of what has none, the place of its begin.
  TokenOffset place_of(std::int64_t begin, std::int64_t end) const {
    const auto count = static_cast<std::int64_t>(places_->size());
    if (begin >= count) return {0, 0};
    const std::int64_t last = std::min(std::max(begin + 1, end), count) - 1;
    const auto place = [&](std::int64_t at) { return (*places_)[static_cast<std::size_t>(at)]; };
    return {place(begin).begin, place(last).end};
  }
  std::int64_t character_end(std::int64_t begin) const {
    if (begin >= size_) return begin;
    const std::uint8_t byte = document_[begin];
    const int size = byte < 0xC0 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
    return std::min(begin + size, size_);
  }

  std::vector<std::uint32_t> sizes_;
  Buffer<TokenOffset>* out_ = nullptr;
  const std::uint8_t* document_ = nullptr;
  std::int64_t size_ = 0;
  const std::uint8_t* copy_ = nullptr;  // what texts are parts of, and where its begin belongs
  std::int64_t copy_begins_ = 0;
  std::int64_t least_ = 0;          // where that begins without what was put in front
  const Places* places_ = nullptr;  // of what texts are parts of, if that is another text
  bool is_known_ = true;
  bool is_placed_ = true;
};

// Sets mask[t] to 1 where token t has a part in one of the spans of its document, else to 0.
// `lengths` are the tokens of each document, `counts` the spans of each. REQUIRES: within a
// document spans are ascending and apart, begins of tokens ascending; sums of lengths and counts
// are the sizes of offsets and spans.
void mark_tokens(std::span<const TokenOffset> offsets, std::span<const std::int32_t> lengths,
                 std::span<const TokenOffset> spans, std::span<const std::int64_t> counts,
                 std::uint8_t* mask);

}  // namespace tokpack
