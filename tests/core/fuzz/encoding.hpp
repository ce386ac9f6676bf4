// What fuzz targets of encoders over characters share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bpe/bpe_encoder.hpp"
#include "fuzz.hpp"

namespace tokpack::test {

inline std::vector<std::string> characters(const std::string& text) {
  std::vector<std::string> result;
  for (const char c : text) {
    if (result.empty() || (c & 0xC0) != 0x80) result.emplace_back();
    result.back() += c;
  }
  return result;
}

// The documents in an input: 0xFF separates them.
inline std::vector<std::string> documents(const std::string& text) {
  std::vector<std::string> result(1);
  for (const char c : text) {
    if (static_cast<std::uint8_t>(c) == 0xFF) {
      result.emplace_back();
    } else {
      result.back() += c;
    }
  }
  return result;
}

// The ids of each, in the frame of the id 1 behind.
inline std::vector<std::vector<std::uint32_t>> encode(BpeEncoder& encoder,
                                                      const std::vector<std::string>& texts) {
  std::string data;
  std::vector<Span> spans;
  for (const std::string& text : texts) {
    const auto begin = static_cast<std::int64_t>(data.size());
    data += text;
    spans.push_back({begin, static_cast<std::int64_t>(data.size())});
  }
  const Exact copy(data);
  Buffer<std::int32_t> ids;
  Buffer<std::int32_t> lengths;
  std::vector<std::int64_t> special;
  encoder.encode(copy.span(), spans, {{}, {1}}, {&ids, &lengths, &special});
  std::vector<std::vector<std::uint32_t>> result;
  const std::int32_t* at = ids.data();
  for (std::size_t i = 0; i < lengths.size(); at += lengths[i++]) {
    result.emplace_back(at, at + lengths[i]);
  }
  MUST(at == ids.data() + ids.size());
  return result;
}

}  // namespace tokpack::test
