#include "core/sentencepiece/text_normalizer.hpp"

#include <algorithm>
#include <stdexcept>

#include "core/bpe/added_tokens.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/text/graphemes.hpp"
#include "core/text/nfc.hpp"
#include "core/text/utf8.hpp"

namespace tokpack {
namespace {

constexpr std::size_t kMostOfCluster = 6;  // a cluster of fewer bytes is looked up as a whole

constexpr std::array<char, 128> kAscii = [] {
  std::array<char, 128> all{};
  for (std::size_t c = 0; c < all.size(); ++c) all[c] = static_cast<char>(c);
  return all;
}();

const std::uint8_t* bytes_of(std::string_view text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

// Whether the rules leave a character as it is, unless marks follow.
bool is_plain(const CharacterMap& rules, CodePoint at) {
  if (!rules.leaves(at.value)) return false;
  return at.value < 0x80 ? at.value != '\r' : cluster_class(at.value) == ClusterClass::kAny;
}

void append_cluster(const CharacterMap& rules, std::string_view cluster, std::string* out) {
  if (cluster.size() < kMostOfCluster) {
    const auto rule = rules.shortest(bytes_of(cluster), cluster.size());
    if (rule.size != 0) {
      *out += rule.replacement;
      return;
    }
  }
  for (std::size_t at = 0; at < cluster.size();) {
    const std::size_t size = decode_utf8(bytes_of(cluster) + at).size;
    const auto rule = rules.shortest(bytes_of(cluster) + at, size);
    *out += rule.size != 0 ? rule.replacement : cluster.substr(at, size);
    at += size;
  }
}

void append_ruled(const CharacterMap& rules, std::string_view text, std::string* out) {
  const std::uint8_t* data = bytes_of(text);
  std::uint64_t ascii[2] = {};  // the plain characters, a bit each
  for (std::uint32_t c = 0; c < 0x80; ++c) {
    ascii[c >> 6] |= std::uint64_t{is_plain(rules, {c, 1})} << (c & 63);
  }
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at, last = at;
    while (end < text.size()) {
      if (data[end] < 0x80) {
        if ((ascii[data[end] >> 6] >> (data[end] & 63) & 1) == 0) break;
        last = end++;
        continue;
      }
      const CodePoint here = decode_utf8(data + end);
      if (!is_plain(rules, here)) break;
      last = end;
      end += here.size;
    }
    // The last plain character may begin the cluster of what is behind it.
    if (end < text.size()) end = last;
    out->append(text, at, end - at);
    at = end;
    if (at == text.size()) return;
    const std::size_t size = grapheme_size(data + at, text.size() - at);
    append_cluster(rules, text.substr(at, size), out);
    at += size;
  }
}

// How much of the text is the white space that kWhiteSpace replaces; 0 for none.
std::size_t replaced_space(std::string_view text, std::size_t at) {
  const std::size_t end = space_end(bytes_of(text), text.size(), at);
  if (end == at) return 0;
  const bool one = decode_utf8(bytes_of(text) + at).size == end - at;
  return one && text[at] != '\t' && text[at] != '\n' && text[at] != '\r' ? 0 : end - at;
}

// Replaces what match(text, at), a number of bytes, tells at each place that find(at) gives.
template <class Find, class Match>
std::string_view replace(std::string_view text, const std::string& to, std::string* out,
                         Find&& find, Match&& match) {
  std::size_t from = 0;
  for (std::size_t at = 0; at < text.size();) {
    at = std::min(find(at), text.size());
    const std::size_t size = at < text.size() ? match(text, at) : 0;
    if (size == 0) {
      ++at;
      continue;
    }
    out->append(text, from, at - from);
    *out += to;
    at += size;
    from = at;
  }
  if (from == 0) return text;
  out->append(text, from);
  return *out;
}

}  // namespace

TextNormalizer::TextNormalizer(std::vector<NormalizerStep> steps) {
  for (NormalizerStep& settings : steps) {
    Step& step = steps_.emplace_back();
    step.settings = std::move(settings);
    const NormalizerStep& known = step.settings;
    if (known.kind == NormalizerKind::kReplace && known.from.empty()) {
      throw std::invalid_argument("a normalizer replaces nothing");
    }
    if (known.kind == NormalizerKind::kRules) {
      step.rules = CharacterMap(known.from);
      if (step.rules.empty() || !step.rules.is_sound()) {
        throw std::invalid_argument("its normalization rules (precompiled_charsmap) are broken");
      }
    }
  }
  // Views of texts that no longer move.
  for (Step& step : steps_) {
    if (step.settings.kind != NormalizerKind::kCharacters) continue;
    for (std::size_t c = 0; c < step.ascii.size(); ++c) step.ascii[c] = {&kAscii[c], 1};
    const std::string_view from = step.settings.from, to = step.settings.to;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < from.size();) {
      const std::size_t size =
          std::min(from.size() - at, character_size(static_cast<std::uint8_t>(from[at])));
      const std::size_t end = to.find('\0', begin);
      if (end == std::string_view::npos) throw std::invalid_argument("a character becomes nothing");
      const std::string_view character = from.substr(at, size),
                             becomes = to.substr(begin, end - begin);
      if (size == 1 && static_cast<std::uint8_t>(character[0]) < 0x80) {
        step.ascii[static_cast<std::uint8_t>(character[0])] = becomes;
      } else {
        step.characters.emplace(character, becomes);
      }
      begin = end + 1;
      at += size;
    }
  }
}

std::string_view TextNormalizer::normalize(std::string_view text) {
  unsigned turn = 0;
  for (const Step& step : steps_) {
    std::string* out = &out_[turn];
    out->clear();
    text = apply(step, text, out);
    if (!out->empty()) turn ^= 1;
  }
  return text;
}

std::string_view TextNormalizer::apply(const Step& step, std::string_view text, std::string* out) {
  const NormalizerStep& known = step.settings;
  switch (known.kind) {
    case NormalizerKind::kRules:
      append_ruled(step.rules, text, out);
      return *out;
    case NormalizerKind::kReplace:
      return replace(
          text, known.to, out, [&](std::size_t at) { return text.find(known.from, at); },
          [&](std::string_view, std::size_t) { return known.from.size(); });
    case NormalizerKind::kSpaceRuns:
      return replace(
          text, known.to, out,
          [&](std::size_t at) {
            while (at + 1 < text.size() && (text[at] != ' ' || text[at + 1] != ' ')) ++at;
            return at + 1 < text.size() ? at : text.size();
          },
          [](std::string_view all, std::size_t at) {
            return std::min(all.find_first_not_of(' ', at), all.size()) - at;
          });
    case NormalizerKind::kWhiteSpace:
      return replace(text, known.to, out, [](std::size_t at) { return at; }, replaced_space);
    case NormalizerKind::kStripLeft:
      return text.substr(space_end(bytes_of(text), text.size(), 0));
    case NormalizerKind::kStripRight:
      return text.substr(0, space_begin(bytes_of(text), text.size()));
    case NormalizerKind::kCharacters:
      for (std::size_t at = 0; at < text.size();) {
        const auto first = static_cast<std::uint8_t>(text[at]);
        if (first < 0x80) {
          *out += step.ascii[first];
          ++at;
          continue;
        }
        const std::size_t size = character_size(first);
        const std::string_view character = text.substr(at, size);
        const auto found = step.characters.find(character);
        *out += found == step.characters.end() ? character : found->second;
        at += size;
      }
      return *out;
    case NormalizerKind::kNfc:
      if (is_nfc_quick(text)) return text;
      nfc(text, *out);
      return *out;
  }
  return text;
}

}  // namespace tokpack
