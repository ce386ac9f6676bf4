// What the fuzz targets of encoders share.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
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

// The ids of each, with the id 1 behind those that have any.
template <class Out>
std::vector<std::vector<std::uint32_t>> encode_as(BpeEncoder& encoder,
                                                  const std::vector<std::string>& texts) {
  std::string data;
  std::vector<Span> spans;
  for (const std::string& text : texts) {
    const auto begin = static_cast<std::int64_t>(data.size());
    data += text;
    spans.push_back({begin, static_cast<std::int64_t>(data.size())});
  }
  const Exact copy(data);
  Buffer<Out> ids;
  Buffer<std::int32_t> lengths;
  std::vector<std::int64_t> special;
  encoder.encode(copy.span(), spans, {{}, {1}}, {&ids, &lengths, &special});
  std::vector<std::vector<std::uint32_t>> result;
  const Out* at = ids.data();
  for (std::size_t i = 0; i < lengths.size(); at += lengths[i++]) {
    result.emplace_back(at, at + lengths[i]);
  }
  MUST(at == ids.data() + ids.size());
  return result;
}

// A slow twin, whose encode() gives the ids of a document, and the encoder at every level. They
// live on from input to input, so that caches fill, grow and are replaced.
template <class Twin>
struct Bench {
  Twin twin;
  bool wide = true;
  std::vector<std::unique_ptr<BpeEncoder>> encoders = {};
};

// What make(choice) gives, made once for each choice, while there are no more than `kept` of them.
template <class Twin>
Bench<Twin>& bench_of(unsigned choice, std::size_t kept, Bench<Twin> (*make)(unsigned choice)) {
  static std::map<unsigned, std::unique_ptr<Bench<Twin>>> all;
  if (all.size() == kept && all.count(choice) == 0) all.clear();
  auto& one = all[choice];
  if (!one) one = std::make_unique<Bench<Twin>>(make(choice));
  return *one;
}

// The documents of an input: the same ids at every level as from the twin. Of documents that are
// not UTF-8 the ids mean nothing; there are at most `most` a byte, and the frame.
template <class Twin>
void compare(Bench<Twin>& with, std::string_view input, std::size_t most) {
  const std::vector<std::string> raw = documents(std::string(input));
  std::vector<std::string> texts;
  std::vector<std::vector<std::uint32_t>> expected;
  for (const std::string& text : raw) {
    texts.push_back(repaired(reinterpret_cast<const std::uint8_t*>(text.data()), text.size()));
    expected.push_back(with.twin.encode(texts.back()));
    if (!expected.back().empty()) expected.back().push_back(1);
  }
  const auto encode = [&](BpeEncoder& encoder, const std::vector<std::string>& all) {
    return with.wide ? encode_as<std::int32_t>(encoder, all)
                     : encode_as<std::uint16_t>(encoder, all);
  };
  for (const auto& encoder : with.encoders) {
    const auto any = encode(*encoder, raw);
    for (std::size_t i = 0; i < raw.size(); ++i) MUST(any[i].size() <= most * raw[i].size() + 4);
    MUST(encode(*encoder, texts) == expected);
  }
}

}  // namespace tokpack::test
