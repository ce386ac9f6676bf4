// Bindings of what compares documents: signatures, equal keys, clusters, phrases of evaluation
// sets.
#include <cstddef>
#include <utility>

#include "bind/arrays.hpp"
#include "core/documents/clusters.hpp"
#include "core/documents/phrases.hpp"
#include "core/documents/sketch.hpp"
#include "core/documents/spelling.hpp"
#include "core/documents/words.hpp"
#include "core/documents/xxh3.hpp"

namespace tokpack {
namespace {

// Calls use(span) with ids of two, four or eight bytes.
template <class Use>
auto with_tokens(const py::array& tokens, Use&& use) {
  const bool plain = tokens.ndim() == 1 && (tokens.flags() & py::array::c_style);
  const char kind = tokens.dtype().kind();
  const auto size = static_cast<std::size_t>(tokens.size());
  if (plain && kind == 'u' && tokens.itemsize() == 2 && is_aligned(tokens, 2)) {
    return use(std::span(static_cast<const std::uint16_t*>(tokens.data()), size));
  }
  if (plain && kind == 'u' && tokens.itemsize() == 4 && is_aligned(tokens, 4)) {
    return use(std::span(static_cast<const std::uint32_t*>(tokens.data()), size));
  }
  if (plain && kind == 'u' && tokens.itemsize() == 8 && is_aligned(tokens, 8)) {
    return use(std::span(static_cast<const std::uint64_t*>(tokens.data()), size));
  }
  throw py::value_error("tokens must be aligned uint16, uint32 or uint64 of one dimension");
}

// The documents' tokens are [begin, end) in the array.
std::span<const std::array<std::int64_t, 2>> spans_of(const Int64s& spans, std::size_t tokens) {
  if (spans.ndim() != 2 || spans.shape(1) != 2 || !is_aligned(spans)) {
    throw py::value_error("spans must be aligned int64 [documents, 2]");
  }
  const std::span<const std::array<std::int64_t, 2>> all(
      reinterpret_cast<const std::array<std::int64_t, 2>*>(spans.data()),
      static_cast<std::size_t>(spans.shape(0)));
  for (const auto& [begin, end] : all) {
    if (begin < 0 || end < begin || static_cast<std::size_t>(end) > tokens) {
      throw py::value_error("a span leaves the tokens");
    }
  }
  return all;
}

template <class T>
std::span<const T> document_of(std::span<const T> tokens, const std::array<std::int64_t, 2>& span) {
  return tokens.subspan(static_cast<std::size_t>(span[0]),
                        static_cast<std::size_t>(span[1] - span[0]));
}

Array<std::uint64_t> band_hashes(const py::array& tokens, const Int64s& spans, std::size_t ngram,
                                 std::size_t bands, std::size_t rows) {
  Sketch sketch(ngram, bands, rows);
  const auto documents = spans_of(spans, static_cast<std::size_t>(tokens.size()));
  Array<std::uint64_t> result(
      {static_cast<py::ssize_t>(documents.size()), static_cast<py::ssize_t>(bands)});
  std::uint64_t* const out = result.mutable_data();
  with_tokens(tokens, [&](auto all) {
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      sketch.band_hashes(document_of(all, documents[i]), {out + i * bands, bands});
    }
  });
  return result;
}

// Writes a digest, most significant byte first.
void write_digest(const Uint128& digest, std::uint8_t* out) {
  for (int i = 0; i < 8; ++i) {
    out[i] = static_cast<std::uint8_t>(digest.high >> (56 - 8 * i));
    out[8 + i] = static_cast<std::uint8_t>(digest.low >> (56 - 8 * i));
  }
}

// The digests of documents, uint8 [documents, 16]; `bytes_of` gives the bytes of one.
template <class BytesOf>
Array<std::uint8_t> digests_of(std::span<const std::array<std::int64_t, 2>> documents,
                               const std::string& level_name, BytesOf&& bytes_of) {
  const Level level = parse_level(level_name);
  Array<std::uint8_t> result({static_cast<py::ssize_t>(documents.size()), py::ssize_t{16}});
  std::uint8_t* out = result.mutable_data();
  const py::gil_scoped_release release;
  for (const auto& document : documents) {
    write_digest(xxh3_128(bytes_of(document), level), out);
    out += 16;
  }
  return result;
}

Array<std::uint8_t> text_digests(const py::buffer& source, const Int64s& spans,
                                 const std::string& level) {
  const Bytes data(source);
  return digests_of(spans_of(spans, data.span().size()), level,
                    [&](const auto& span) { return document_of(data.span(), span); });
}

// Ids of 64 bits are hashed as int32, like those of other dtypes; documents with larger ids in a
// longer form that no other ids have.
std::span<const std::uint8_t> hashed_form(std::span<const std::uint64_t> ids,
                                          std::vector<std::uint8_t>& room) {
  const bool fit = std::all_of(ids.begin(), ids.end(), [](std::uint64_t id) {
    return id + (std::uint64_t{1} << 31) < std::uint64_t{1} << 32;
  });
  room.resize(fit ? 4 * ids.size() : 8 * ids.size() + 1);
  if (!fit) {
    std::memcpy(room.data(), ids.data(), 8 * ids.size());
    room.back() = 0;
    return room;
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto narrow = static_cast<std::uint32_t>(ids[i]);
    std::memcpy(room.data() + 4 * i, &narrow, sizeof(narrow));
  }
  return room;
}

Array<std::uint8_t> token_digests(const py::array& tokens, const Int64s& spans,
                                  const std::string& level) {
  static_assert(std::endian::native == std::endian::little, "tokens are hashed as they lie");
  const auto documents = spans_of(spans, static_cast<std::size_t>(tokens.size()));
  return with_tokens(tokens, [&](auto all) {
    std::vector<std::uint32_t> wide;
    std::vector<std::uint8_t> room;
    return digests_of(documents, level, [&](const auto& span) {
      const auto ids = document_of(all, span);
      if constexpr (sizeof(ids[0]) == sizeof(std::uint64_t)) {
        return hashed_form(ids, room);
      } else {
        const std::uint32_t* words;
        if constexpr (sizeof(ids[0]) == sizeof(*words)) {
          words = ids.data();
        } else {
          wide.assign(ids.begin(), ids.end());
          words = wide.data();
        }
        return std::span(reinterpret_cast<const std::uint8_t*>(words), 4 * ids.size());
      }
    });
  });
}

Spelling spelling_of(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> ends) {
  std::int64_t last = 0;
  for (const std::int64_t end : ends) {
    if (end < last || static_cast<std::size_t>(end) > bytes.size()) {
      throw py::value_error("the ends of tokens must ascend in their bytes");
    }
    last = end;
  }
  return {bytes, ends};
}

Array<bool> are_texts(const py::array& tokens, const Int64s& spans, const py::buffer& source,
                      const Int64s& text_spans, const py::buffer& bytes, const Int64s& ends) {
  const Bytes data(source), table(bytes);
  const Spelling spelling = spelling_of(table.span(), vector_of(ends, "the ends of tokens"));
  const auto documents = spans_of(spans, static_cast<std::size_t>(tokens.size()));
  const auto texts = spans_of(text_spans, data.span().size());
  if (texts.size() != documents.size()) throw py::value_error("there must be a text for each");
  Array<bool> result(static_cast<py::ssize_t>(documents.size()));
  bool* const out = result.mutable_data();
  with_tokens(tokens, [&](auto all) {
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      out[i] = spelling.is_of(document_of(all, documents[i]), document_of(data.span(), texts[i]));
    }
  });
  return result;
}

template <class Key>
std::span<const Key> keys_of(const Array<std::uint64_t>& keys) {
  return {reinterpret_cast<const Key*>(keys.data()), static_cast<std::size_t>(keys.shape(0))};
}

Int64s array_of(const std::vector<DocumentPair>& pairs) {
  Int64s rows({static_cast<py::ssize_t>(pairs.size()), py::ssize_t{2}});
  if (!pairs.empty()) {
    std::memcpy(rows.mutable_data(), pairs.data(), pairs.size() * sizeof(DocumentPair));
  }
  return rows;
}

Int64s find_equal_pairs(const Array<std::uint64_t>& keys, std::uint32_t part, std::uint32_t parts,
                        bool neighbours) {
  const bool wide = keys.ndim() == 2 && keys.shape(1) == 2;
  if ((keys.ndim() != 1 && !wide) || !is_aligned(keys)) {
    throw py::value_error("keys must be aligned uint64 [documents] or [documents, 2]");
  }
  if (part >= parts) throw py::value_error("part must be below parts");
  std::vector<DocumentPair> pairs;
  {
    const py::gil_scoped_release release;
    if (wide) {
      equal_pairs(keys_of<Key128>(keys), part, parts, neighbours, pairs);
    } else {
      equal_pairs(keys_of<std::uint64_t>(keys), part, parts, neighbours, pairs);
    }
  }
  return array_of(pairs);
}

std::span<const DocumentPair> pairs_of(const Int64s& pairs) {
  if (pairs.ndim() != 2 || pairs.shape(1) != 2 || !is_aligned(pairs)) {
    throw py::value_error("pairs must be aligned int64 [pairs, 2]");
  }
  return {reinterpret_cast<const DocumentPair*>(pairs.data()),
          static_cast<std::size_t>(pairs.shape(0))};
}

std::span<std::int64_t> parents_of(Int64s& parents) {
  vector_of(parents, "parents");
  return {parents.mutable_data(), static_cast<std::size_t>(parents.size())};
}

void join(Int64s& parents, const Int64s& pairs) {
  join_pairs(parents_of(parents), pairs_of(pairs));
}

Int64s separate(Int64s& parents, const Int64s& pairs) {
  std::vector<DocumentPair> apart;
  separate_pairs(parents_of(parents), pairs_of(pairs), apart);
  return array_of(apart);
}

double similarity(const py::array& a, const py::array& b, std::size_t ngram) {
  if (ngram < 1) throw py::value_error("the n-gram must be at least 1");
  return with_tokens(a, [&](auto one) {
    return with_tokens(b, [&](auto other) {
      const py::gil_scoped_release release;
      if constexpr (std::is_same_v<decltype(one), decltype(other)>) {
        return jaccard(one, other, ngram);
      } else {
        const auto wide = [](auto tokens) {
          return std::vector<std::uint64_t>(tokens.begin(), tokens.end());
        };
        const auto first = wide(one), second = wide(other);
        return jaccard<std::uint64_t>(first, second, ngram);
      }
    });
  });
}

Phrases make_phrases(const Array<std::uint64_t>& texts, const Int64s& ends, std::size_t ngram,
                     std::size_t shortest, const Array<std::uint8_t>& sizes, std::size_t size) {
  const auto tokens = vector_of(texts, "texts");
  return Phrases({tokens.begin(), tokens.end()}, vector_of(ends, "ends"), ngram, shortest,
                 vector_of(sizes, "sizes"), size);
}

Int64s phrases_of(const Phrases& phrases) {
  Int64s rows({static_cast<py::ssize_t>(phrases.phrases().size()), py::ssize_t{2}});
  std::int64_t* out = rows.mutable_data();
  for (const Phrases::Phrase& phrase : phrases.phrases()) {
    *out++ = phrase.begin;
    *out++ = phrase.length;
  }
  return rows;
}

// Calls find(document, its tokens, hits) for each document.
template <class Find>
Int64s found_in(const py::array& tokens, const Int64s& spans, Find&& find) {
  const auto documents = spans_of(spans, static_cast<std::size_t>(tokens.size()));
  std::vector<Phrases::Hit> hits;
  with_tokens(tokens, [&](auto all) {
    const py::gil_scoped_release release;
    for (std::size_t i = 0; i < documents.size(); ++i) {
      find(static_cast<std::int64_t>(i), document_of(all, documents[i]), hits);
    }
  });
  return rows_of(hits);
}

Int64s find_phrases(const Phrases& phrases, const py::array& tokens, const Int64s& spans) {
  return found_in(tokens, spans, [&](auto&&... document) { phrases.find(document...); });
}

Int64s find_words(const TokenWords& words, const Phrases& phrases, const py::array& tokens,
                  const Int64s& spans) {
  return found_in(tokens, spans, [&](auto&&... document) { words.find(phrases, document...); });
}

TokenWords make_token_words(const py::buffer& bytes, const Int64s& ends) {
  const Bytes data(bytes);
  return {data.span(), vector_of(ends, "the ends of tokens")};
}

// Hashes of words, whether each is of a script without spaces, and where it stands.
py::tuple arrays_of(const std::vector<Word>& words) {
  const auto size = static_cast<py::ssize_t>(words.size());
  Array<std::uint64_t> hashes(size);
  Array<bool> characters(size);
  Int64s places({size, py::ssize_t{2}});
  std::int64_t* place = places.mutable_data();
  for (py::ssize_t i = 0; i < size; ++i) {
    const Word& word = words[static_cast<std::size_t>(i)];
    hashes.mutable_data()[i] = word.hash;
    characters.mutable_data()[i] = word.is_character;
    *place++ = static_cast<std::int64_t>(word.begin);
    *place++ = static_cast<std::int64_t>(word.end);
  }
  return py::make_tuple(std::move(hashes), std::move(characters), std::move(places));
}

py::tuple words_of_text(const py::buffer& text, const std::string& punctuation) {
  const Bytes data(text);
  const auto bytes = data.span();
  const auto what = punctuation == "spaces"    ? Punctuation::kSpaces
                    : punctuation == "nothing" ? Punctuation::kNothing
                                               : Punctuation::kAsDescribed;
  std::vector<Word> words;
  words_of({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, what, words);
  return arrays_of(words);
}

py::tuple words_of_tokens(const TokenWords& words, const py::array& tokens) {
  std::vector<Word> found;
  with_tokens(tokens, [&](auto all) { words.words(all, found); });
  return arrays_of(found);
}

Array<std::uint32_t> hashes_of_tokens(const TokenWords& words, const py::array& tokens) {
  std::vector<std::uint32_t> found;
  with_tokens(tokens, [&](auto all) {
    const py::gil_scoped_release release;
    words.hashes(all, found);
  });
  return Array<std::uint32_t>(static_cast<py::ssize_t>(found.size()), found.data());
}

}  // namespace

void bind_documents(py::module_& module) {
  module.def("band_hashes", &band_hashes, py::arg("tokens"), py::arg("spans"), py::arg("ngram"),
             py::arg("bands"), py::arg("rows"));
  module.def("text_digests", &text_digests, py::arg("data"), py::arg("spans"),
             py::arg("level") = "auto");
  module.def("token_digests", &token_digests, py::arg("tokens"), py::arg("spans"),
             py::arg("level") = "auto");
  module.def("are_texts", &are_texts, py::arg("tokens"), py::arg("spans"), py::arg("data"),
             py::arg("text_spans"), py::arg("vocabulary"), py::arg("ends"));
  module.def("equal_pairs", &find_equal_pairs, py::arg("keys").noconvert(), py::arg("part") = 0,
             py::arg("parts") = 1, py::arg("neighbours") = false);
  module.def("join_pairs", &join, py::arg("parents").noconvert(), py::arg("pairs"));
  module.def("separate_pairs", &separate, py::arg("parents").noconvert(), py::arg("pairs"));
  module.def("jaccard", &similarity, py::arg("a"), py::arg("b"), py::arg("ngram"));

  py::class_<Phrases>(module, "Phrases")
      .def(py::init(&make_phrases), py::arg("texts"), py::arg("ends"), py::arg("ngram"),
           py::arg("shortest"), py::arg("sizes") = Array<std::uint8_t>(0), py::arg("size") = 1)
      .def_property_readonly("phrases", &phrases_of)
      .def("find", &find_phrases, py::arg("tokens"), py::arg("spans"));

  module.def("words", &words_of_text, py::arg("text"), py::arg("punctuation") = "");
  py::class_<TokenWords>(module, "TokenWords")
      .def(py::init(&make_token_words), py::arg("pieces"), py::arg("ends"))
      .def("words", &words_of_tokens, py::arg("tokens"))
      .def("hashes", &hashes_of_tokens, py::arg("tokens"))
      .def("find", &find_words, py::arg("phrases"), py::arg("tokens"), py::arg("spans"));
}

}  // namespace tokpack
