// ByteLevelBPE, MetaspaceBPE, MetaspaceUnigram and WordPiece, the merges of a vocabulary of ranks,
// and the levels of the machine.
#include <algorithm>
#include <cstring>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include "bind/encoder_binding.hpp"
#include "bind/steps_binding.hpp"
#include "core/bpe/ranked_merges.hpp"
#include "core/sentencepiece/folded.hpp"
#include "core/sentencepiece/metaspace_encoder.hpp"
#include "core/wordpiece/wordpiece_encoder.hpp"

namespace tokpack {
namespace {

using Vocab = std::vector<std::optional<py::bytes>>;
// Content, id, special and normalized, and for most also lstrip, rstrip and single_word.
using PlainTuple = std::tuple<std::string, std::uint32_t, bool, bool>;
using FlagsTuple = std::tuple<std::string, std::uint32_t, bool, bool, bool, bool, bool>;
using AddedTuple = std::variant<PlainTuple, FlagsTuple>;
using MergeRows = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

std::vector<Merge> parse_merges(const MergeRows& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 3) {
    throw py::value_error("merges must have shape [m, 3]: left, right, product");
  }
  const auto view = rows.unchecked<2>();
  std::vector<Merge> merges(static_cast<std::size_t>(view.shape(0)));
  for (py::ssize_t i = 0; i < view.shape(0); ++i) {
    if (view(i, 0) < 0 || view(i, 1) < 0 || view(i, 2) < 0) {
      throw py::value_error("merge " + std::to_string(i) + " has a negative id");
    }
    merges[static_cast<std::size_t>(i)] = {static_cast<std::uint32_t>(view(i, 0)),
                                           static_cast<std::uint32_t>(view(i, 1)),
                                           static_cast<std::uint32_t>(view(i, 2))};
  }
  return merges;
}

bool encodes_specials(const std::string& special_tokens) {
  if (special_tokens != "text" && special_tokens != "encode") {
    throw py::value_error("special_tokens '" + special_tokens + "' is neither text nor encode");
  }
  return special_tokens == "encode";
}

// The added tokens, and the number of ids with those of added tokens.
std::pair<std::vector<AddedToken>, std::size_t> parse_added(const std::vector<AddedTuple>& added,
                                                            std::size_t vocab_size) {
  std::vector<AddedToken> tokens;
  const auto append = [&](const auto&... fields) { tokens.push_back({fields...}); };
  for (const AddedTuple& one : added) {
    std::visit([&](const auto& tuple) { std::apply(append, tuple); }, one);
    const AddedToken& token = tokens.back();
    if (token.id >= BpeModel::kIdLimit) {
      throw py::value_error("added token '" + token.content + "': id " + std::to_string(token.id) +
                            " is out of range");
    }
    vocab_size = std::max<std::size_t>(vocab_size, token.id + std::size_t{1});
  }
  return {std::move(tokens), vocab_size};
}

using NormalizerTuple = std::tuple<std::string, py::bytes, py::bytes>;

std::vector<NormalizerStep> parse_steps(const std::vector<NormalizerTuple>& steps) {
  static constexpr std::pair<std::string_view, NormalizerKind> kKinds[] = {
      {"rules", NormalizerKind::kRules},
      {"replace", NormalizerKind::kReplace},
      {"expression", NormalizerKind::kExpression},
      {"prepend", NormalizerKind::kPrepend},
      {"space runs", NormalizerKind::kSpaceRuns},
      {"white space", NormalizerKind::kWhiteSpace},
      {"strip left", NormalizerKind::kStripLeft},
      {"strip right", NormalizerKind::kStripRight},
      {"characters", NormalizerKind::kCharacters},
      {"clean text", NormalizerKind::kCleanText},
      {"ideographs", NormalizerKind::kIdeographs},
      {"bert marks", NormalizerKind::kBertMarks},
      {"NFC", NormalizerKind::kNfc},
      {"NFD", NormalizerKind::kNfd},
      {"NFKC", NormalizerKind::kNfkc},
      {"NFKD", NormalizerKind::kNfkd},
  };
  std::vector<NormalizerStep> parsed;
  for (const auto& [name, from, to] : steps) {
    const auto* known = std::find_if(std::begin(kKinds), std::end(kKinds),
                                     [&](const auto& kind) { return kind.first == name; });
    if (known == std::end(kKinds)) throw py::value_error("normalizer '" + name + "' is unknown");
    parsed.push_back({known->second, from, to});
  }
  return parsed;
}

// A byte that is in no UTF-8, for the end of a word.
constexpr std::uint8_t kWordEnd = 0xFF;

// Makes a word end with kWordEnd, where its last token is one that ends with `suffix`: the byte has
// the id `end`, and is joined to the byte before it before anything else is.
void end_words(const std::string& suffix, std::uint32_t end,
               std::array<std::uint32_t, 256>* byte_ids, std::vector<Merge>* rules,
               std::vector<std::string>* words) {
  std::vector<Merge> first;
  for (std::uint32_t id = 0; id < words->size(); ++id) {
    std::string& word = (*words)[id];
    if (word.size() <= suffix.size() || !word.ends_with(suffix)) continue;
    word.resize(word.size() - suffix.size());
    const auto byte = static_cast<std::uint8_t>(word[0]);
    if (word.size() == 1 && byte != kWordEnd && (*byte_ids)[byte] != BpeModel::kNoToken) {
      first.push_back({(*byte_ids)[byte], end, id});
    }
    word.push_back(static_cast<char>(kWordEnd));
  }
  (*byte_ids)[kWordEnd] = end;
  rules->insert(rules->begin(), first.begin(), first.end());
}

class ByteLevelBpeBinding final : public EncoderBinding {
 public:
  ByteLevelBpeBinding(const Vocab& vocab, const MergeRows& merges, const PatternChoice& pattern,
                      const std::vector<AddedTuple>& added, const std::string& special_tokens,
                      const std::string& form, const std::vector<NormalizerTuple>& steps,
                      const std::string& suffix, bool ignore_merges, const std::string& dtype,
                      std::size_t cache_bytes, const std::string& level)
      : EncoderBinding(dtype) {
    const bool encode_specials = encodes_specials(special_tokens);
    std::array<std::uint32_t, 256> byte_ids;
    byte_ids.fill(BpeModel::kNoToken);
    std::vector<std::string> words(vocab.size());
    for (std::uint32_t id = 0; id < vocab.size(); ++id) {
      if (!vocab[id]) continue;
      words[id] = *vocab[id];
      if (words[id].size() == 1) byte_ids[static_cast<std::uint8_t>(words[id][0])] = id;
    }
    auto [tokens, vocab_size] = parse_added(added, vocab.size());
    std::vector<Merge> rules = parse_merges(merges);
    BpeOptions options{.pretokenizer = parse_pattern(pattern),
                       .encode_specials = encode_specials,
                       .cache_bytes = cache_bytes,
                       .level = parse_level(level)};
    if (!form.empty()) options.form = parse_form(form);
    if (!steps.empty()) {
      const auto normalizer = std::make_shared<TextNormalizer>(parse_steps(steps));
      options.normalizer = [normalizer](std::string_view text, Places* places) {
        return normalizer->normalize(text, places);
      };
    }
    if (!suffix.empty()) {
      if (ignore_merges) throw py::value_error("ignore_merges is for words without a suffix");
      options.suffix = kWordEnd;
      end_words(suffix, static_cast<std::uint32_t>(vocab_size), &byte_ids, &rules, &words);
    }
    const py::gil_scoped_release release;
    encoder_ = make_bpe_encoder(
        BpeModel(byte_ids, rules, ignore_merges ? WholeWords(words) : WholeWords()),
        std::move(tokens), words, wide_, static_cast<std::uint32_t>(vocab_size), options);
  }
};

// The tokens of a text in which U+2581 stands for each space.
std::vector<std::string> fold(const Vocab& vocab) {
  std::vector<std::string> tokens;
  for (const auto& token : vocab) {
    const std::string text = token ? std::string(*token) : "";
    tokens.push_back(text.find(' ') == std::string::npos ? folded(text) : "");
  }
  return tokens;
}

void check_byte_ids(const std::vector<std::uint32_t>& byte_ids) {
  if (!byte_ids.empty() && byte_ids.size() != 256) throw py::value_error("256 bytes have ids");
}

UnigramScores parse_scores(const Vocab& vocab, std::vector<double> scores,
                           std::vector<std::uint32_t> byte_ids, std::uint32_t unknown) {
  check_byte_ids(byte_ids);
  if (scores.size() > vocab.size() || unknown >= scores.size()) {
    throw py::value_error("a score or the unknown token is outside of the vocabulary");
  }
  return {std::move(scores), unknown, std::move(byte_ids)};
}

class MetaspaceBinding : public EncoderBinding {
 protected:
  using EncoderBinding::EncoderBinding;

  // `model` has all parameters but those that both kinds of models share.
  void make(MetaspaceModel model, const Vocab& vocab, const std::vector<NormalizerTuple>& steps,
            const std::string& prefix, const std::vector<AddedTuple>& added,
            const std::string& special_tokens, std::size_t cache_bytes, const std::string& level) {
    model.tokens = fold(vocab);
    model.steps = parse_steps(steps);
    model.prefix = parse_prefix(prefix);
    model.encode_specials = encodes_specials(special_tokens);
    std::size_t vocab_size = 0;
    std::tie(model.added, vocab_size) = parse_added(added, vocab.size());
    const Level chosen = parse_level(level);
    const py::gil_scoped_release release;
    encoder_ = make_metaspace_encoder(std::move(model), vocab_size, wide_, cache_bytes, chosen);
  }
};

class MetaspaceBpeBinding final : public MetaspaceBinding {
 public:
  MetaspaceBpeBinding(const Vocab& vocab, const MergeRows& merges,
                      std::vector<std::uint32_t> byte_ids, std::uint32_t unknown, bool fuse_unknown,
                      bool ignore_merges, bool normalizes, bool prepends,
                      const std::vector<NormalizerTuple>& steps, const std::string& prefix,
                      bool cuts_at_spaces, const std::vector<AddedTuple>& added,
                      const std::string& special_tokens, const std::string& dtype,
                      std::size_t cache_bytes, const std::string& level)
      : MetaspaceBinding(dtype) {
    MetaspaceModel model;
    model.merges = parse_merges(merges);
    for (const Merge& merge : model.merges) {
      if (std::max({merge.left, merge.right, merge.product}) >= vocab.size()) {
        throw py::value_error("a merge has an id outside of the vocabulary");
      }
    }
    check_byte_ids(byte_ids);
    if (ignore_merges && cuts_at_spaces) {
      throw py::value_error("ignore_merges is for texts that are not cut at spaces");
    }
    model.byte_ids = std::move(byte_ids);
    model.unknown = unknown;
    model.fuse_unknown = fuse_unknown;
    model.ignore_merges = ignore_merges;
    model.normalizes = normalizes;
    model.prepends = prepends;
    model.cuts_at_spaces = cuts_at_spaces;
    make(std::move(model), vocab, steps, prefix, added, special_tokens, cache_bytes, level);
  }
};

class MetaspaceUnigramBinding final : public MetaspaceBinding {
 public:
  MetaspaceUnigramBinding(const Vocab& vocab, std::vector<double> scores,
                          std::vector<std::uint32_t> byte_ids, std::uint32_t unknown,
                          const std::vector<NormalizerTuple>& steps, bool splits_white_space,
                          const std::string& prefix, const std::vector<AddedTuple>& added,
                          const std::string& special_tokens, const std::string& dtype,
                          std::size_t cache_bytes, const std::string& level)
      : MetaspaceBinding(dtype) {
    MetaspaceModel model;
    model.scores = parse_scores(vocab, std::move(scores), std::move(byte_ids), unknown);
    model.unknown = unknown;
    model.fuse_unknown = model.scores->byte_ids.empty();
    model.splits_white_space = splits_white_space;
    model.cuts_at_spaces = true;
    make(std::move(model), vocab, steps, prefix, added, special_tokens, cache_bytes, level);
  }
};

class TextNormalizerBinding {
 public:
  explicit TextNormalizerBinding(const std::vector<NormalizerTuple>& steps)
      : normalizer_(parse_steps(steps)) {}

  py::bytes normalize(const py::buffer& data) {
    const Bytes bytes(data);
    const std::span<const std::uint8_t> span = bytes.span();
    require_utf8(span);
    return std::string(
        normalizer_.normalize({reinterpret_cast<const char*>(span.data()), span.size()}));
  }

 private:
  TextNormalizer normalizer_;
};

// The names of WordCutter's steps, or those of a Pretokenizer of characters.
using CutChoice = std::variant<std::vector<std::string>, std::vector<StepTuple>>;

class WordBinding : public EncoderBinding {
 protected:
  using EncoderBinding::EncoderBinding;

  // `model` has all parameters but those that both kinds of models share.
  void make(WordPieceModel model, const Vocab& vocab, const std::string& prefix,
            std::uint32_t unknown, const std::vector<NormalizerTuple>& steps, const CutChoice& cuts,
            const std::vector<AddedTuple>& added, const std::string& special_tokens,
            std::size_t cache_bytes, const std::string& level) {
    if (unknown >= vocab.size()) {
      throw py::value_error("the unknown token is outside of the vocabulary");
    }
    if (model.scores) {
      model.tokens = fold(vocab);
    } else {
      for (const auto& token : vocab) model.tokens.push_back(token ? std::string(*token) : "");
    }
    model.prefix = prefix;
    model.unknown = unknown;
    model.steps = parse_steps(steps);
    if (const auto* const names = std::get_if<std::vector<std::string>>(&cuts)) {
      model.cuts = *names;
    } else {
      const auto texts = step_texts(std::get<std::vector<StepTuple>>(cuts));
      model.pretokenizer = model.bpe && model.bpe->of_bytes ? Pretokenizer(texts)
                                                            : Pretokenizer::of_characters(texts);
    }
    model.encode_specials = encodes_specials(special_tokens);
    std::size_t vocab_size = 0;
    std::tie(model.added, vocab_size) = parse_added(added, vocab.size());
    const Level chosen = parse_level(level);
    const py::gil_scoped_release release;
    encoder_ = make_wordpiece_encoder(std::move(model), vocab_size, wide_, cache_bytes, chosen);
  }
};

class WordPieceBinding final : public WordBinding {
 public:
  WordPieceBinding(const Vocab& vocab, const std::string& prefix, std::uint32_t unknown,
                   std::size_t longest_word, const std::vector<NormalizerTuple>& steps,
                   const CutChoice& cuts, const std::vector<AddedTuple>& added,
                   const std::string& special_tokens, const std::string& dtype,
                   std::size_t cache_bytes, const std::string& level)
      : WordBinding(dtype) {
    WordPieceModel model;
    model.longest_word = longest_word;
    make(std::move(model), vocab, prefix, unknown, steps, cuts, added, special_tokens, cache_bytes,
         level);
  }
};

class WordBpeBinding final : public WordBinding {
 public:
  WordBpeBinding(const Vocab& vocab, const MergeRows& merges, const std::string& prefix,
                 const std::string& suffix, std::uint32_t unknown, bool fuse_unknown,
                 bool byte_fallback, bool ignore_merges, bool of_bytes,
                 const std::vector<NormalizerTuple>& steps, const CutChoice& cuts,
                 const std::vector<AddedTuple>& added, const std::string& special_tokens,
                 const std::string& dtype, std::size_t cache_bytes, const std::string& level)
      : WordBinding(dtype) {
    WordPieceModel model;
    model.bpe = {.merges = parse_merges(merges),
                 .suffix = suffix,
                 .fuse_unknown = fuse_unknown,
                 .byte_fallback = byte_fallback,
                 .ignore_merges = ignore_merges,
                 .of_bytes = of_bytes};
    make(std::move(model), vocab, prefix, unknown, steps, cuts, added, special_tokens, cache_bytes,
         level);
  }
};

class WordUnigramBinding final : public WordBinding {
 public:
  WordUnigramBinding(const Vocab& vocab, std::vector<double> scores,
                     std::vector<std::uint32_t> byte_ids, std::uint32_t unknown,
                     const std::vector<NormalizerTuple>& steps, const CutChoice& cuts,
                     const std::vector<AddedTuple>& added, const std::string& special_tokens,
                     const std::string& dtype, std::size_t cache_bytes, const std::string& level)
      : WordBinding(dtype) {
    WordPieceModel model;
    model.scores = parse_scores(vocab, std::move(scores), std::move(byte_ids), unknown);
    make(std::move(model), vocab, "", unknown, steps, cuts, added, special_tokens, cache_bytes,
         level);
  }
};

py::tuple ranked_merges(const Vocab& vocab) {
  std::vector<std::string_view> tokens(vocab.size());
  for (std::size_t rank = 0; rank < vocab.size(); ++rank) {
    if (vocab[rank]) tokens[rank] = std::string_view(*vocab[rank]);
  }
  RankedMerges found;
  {
    const py::gil_scoped_release release;
    found = merges_of_ranks(tokens);
  }
  static_assert(sizeof(Merge) == 3 * sizeof(std::int32_t));
  py::array_t<std::int32_t> merges({static_cast<py::ssize_t>(found.merges.size()), py::ssize_t{3}});
  std::memcpy(merges.mutable_data(), found.merges.data(), found.merges.size() * sizeof(Merge));
  return py::make_tuple(merges, found.unmergeable);
}

using OffsetRows = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;
using CountRow = py::array_t<std::int64_t, py::array::c_style | py::array::forcecast>;

std::span<const TokenOffset> offsets_in(const OffsetRows& rows, const char* name) {
  if (rows.ndim() != 2 || rows.shape(1) != 2) {
    throw py::value_error(std::string(name) + " must have shape [n, 2]: begin, end");
  }
  return {reinterpret_cast<const TokenOffset*>(rows.data()),
          static_cast<std::size_t>(rows.shape(0))};
}

// Throws ValueError unless the numbers of all documents are at least 0 and add up to `total`.
template <class T>
void check_sum(std::span<const T> numbers, std::size_t total, const char* name) {
  std::size_t sum = 0;
  for (const T number : numbers) {
    if (number < 0 || static_cast<std::size_t>(number) > total - sum) {
      throw py::value_error(std::string(name) + " have another sum");
    }
    sum += static_cast<std::size_t>(number);
  }
  if (sum != total) throw py::value_error(std::string(name) + " have another sum");
}

py::array marked_tokens(const OffsetRows& offset_rows, const OffsetRows& length_rows,
                        const OffsetRows& span_rows, const CountRow& count_rows) {
  const auto offsets = offsets_in(offset_rows, "offsets"), spans = offsets_in(span_rows, "spans");
  if (length_rows.ndim() != 1 || count_rows.ndim() != 1 ||
      length_rows.size() != count_rows.size()) {
    throw py::value_error("lengths and counts must have a number for each document");
  }
  const auto documents = static_cast<std::size_t>(length_rows.size());
  const std::span<const std::int32_t> lengths(length_rows.data(), documents);
  const std::span<const std::int64_t> counts(count_rows.data(), documents);
  check_sum(lengths, offsets.size(), "lengths");
  check_sum(counts, spans.size(), "counts");
  py::array_t<std::uint8_t> mask(static_cast<py::ssize_t>(offsets.size()));
  mark_tokens(offsets, lengths, spans, counts, mask.mutable_data());
  return mask;
}

}  // namespace

void bind_bpe(py::module_& module) {
  module.def("simd_levels", [] {
    std::vector<std::string> names;
    for (const Level level : levels()) names.emplace_back(level_name(level));
    return names;
  });
  module.def("ranked_merges", &ranked_merges, py::arg("vocab"));
  module.def("mark_tokens", &marked_tokens, py::arg("offsets"), py::arg("lengths"),
             py::arg("spans"), py::arg("counts"));
  py::class_<Encoded>(module, "Encoded")
      .def_readonly("ids", &Encoded::ids)
      .def_readonly("lengths", &Encoded::lengths)
      .def_readonly("special", &Encoded::special)
      .def_readonly("offsets", &Encoded::offsets)
      .def_readonly("unplaced", &Encoded::unplaced);
  py::class_<EncoderBinding>(module, "AnyEncoder")
      .def("encode", &EncoderBinding::encode, py::arg("data"), py::arg("spans"),
           py::arg("before") = std::vector<std::uint32_t>{},
           py::arg("after") = std::vector<std::uint32_t>{}, py::arg("offsets") = false)
      .def("cache_info", &EncoderBinding::cache_info);
  py::class_<ByteLevelBpeBinding, EncoderBinding>(module, "ByteLevelBPE")
      .def(py::init<const Vocab&, const MergeRows&, const PatternChoice&,
                    const std::vector<AddedTuple>&, const std::string&, const std::string&,
                    const std::vector<NormalizerTuple>&, const std::string&, bool,
                    const std::string&, std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("merges"), py::arg("pattern"), py::arg("added"),
           py::arg("special_tokens"), py::arg("form") = "",
           py::arg("steps") = std::vector<NormalizerTuple>{}, py::arg("suffix") = "",
           py::arg("ignore_merges") = false, py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
  py::class_<MetaspaceBpeBinding, EncoderBinding>(module, "MetaspaceBPE")
      .def(py::init<const Vocab&, const MergeRows&, std::vector<std::uint32_t>, std::uint32_t, bool,
                    bool, bool, bool, const std::vector<NormalizerTuple>&, const std::string&, bool,
                    const std::vector<AddedTuple>&, const std::string&, const std::string&,
                    std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("merges"), py::arg("byte_ids"),
           py::arg("unknown"), py::arg("fuse_unknown"), py::arg("ignore_merges"),
           py::arg("normalizes"), py::arg("prepends"), py::arg("steps"), py::arg("prefix"),
           py::arg("cuts_at_spaces"), py::arg("added"), py::arg("special_tokens"),
           py::arg("dtype") = "uint16", py::arg("cache_bytes") = std::size_t{64} << 20,
           py::arg("level") = "auto");
  py::class_<MetaspaceUnigramBinding, EncoderBinding>(module, "MetaspaceUnigram")
      .def(py::init<const Vocab&, std::vector<double>, std::vector<std::uint32_t>, std::uint32_t,
                    const std::vector<NormalizerTuple>&, bool, const std::string&,
                    const std::vector<AddedTuple>&, const std::string&, const std::string&,
                    std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("scores"), py::arg("byte_ids"),
           py::arg("unknown"), py::arg("steps"), py::arg("splits_white_space"), py::arg("prefix"),
           py::arg("added"), py::arg("special_tokens"), py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
  py::class_<WordPieceBinding, EncoderBinding>(module, "WordPiece")
      .def(py::init<const Vocab&, const std::string&, std::uint32_t, std::size_t,
                    const std::vector<NormalizerTuple>&, const CutChoice&,
                    const std::vector<AddedTuple>&, const std::string&, const std::string&,
                    std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("prefix"), py::arg("unknown"),
           py::arg("longest_word"), py::arg("steps"), py::arg("cuts"), py::arg("added"),
           py::arg("special_tokens"), py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
  py::class_<WordBpeBinding, EncoderBinding>(module, "WordBPE")
      .def(py::init<const Vocab&, const MergeRows&, const std::string&, const std::string&,
                    std::uint32_t, bool, bool, bool, bool, const std::vector<NormalizerTuple>&,
                    const CutChoice&, const std::vector<AddedTuple>&, const std::string&,
                    const std::string&, std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("merges"), py::arg("prefix"), py::arg("suffix"),
           py::arg("unknown"), py::arg("fuse_unknown"), py::arg("byte_fallback"),
           py::arg("ignore_merges"), py::arg("of_bytes"), py::arg("steps"), py::arg("cuts"),
           py::arg("added"), py::arg("special_tokens"), py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
  py::class_<WordUnigramBinding, EncoderBinding>(module, "WordUnigram")
      .def(py::init<const Vocab&, std::vector<double>, std::vector<std::uint32_t>, std::uint32_t,
                    const std::vector<NormalizerTuple>&, const CutChoice&,
                    const std::vector<AddedTuple>&, const std::string&, const std::string&,
                    std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("scores"), py::arg("byte_ids"),
           py::arg("unknown"), py::arg("steps"), py::arg("cuts"), py::arg("added"),
           py::arg("special_tokens"), py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
  py::class_<TextNormalizerBinding>(module, "TextNormalizer")
      .def(py::init<const std::vector<NormalizerTuple>&>(), py::arg("steps"))
      .def("normalize", &TextNormalizerBinding::normalize, py::arg("data"));
}

}  // namespace tokpack
