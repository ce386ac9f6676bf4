// Words of text as evaluation sets are compared by: without case, accents and punctuation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/documents/phrases.hpp"

namespace tokpack {

// A word is the text between white space, in lower case and form NFKD, without marks (accents),
// punctuation and symbols; long dashes, slashes, bars, bullets and the ellipsis character are white
// space. In scripts that are written without spaces every character is a word of its own. Markup is
// not text: a tag of HTML is white space, a numeric entity is its character and any other is
// nothing, the address of a Markdown link is nothing; \n, \r, \t and \u00e9, as JSON writes them,
// are what they stand for. A number followed by a dot, a bracket or a colon, or a letter followed
// by one of the last two, is a list marker and not a word. Bytes that are not UTF-8 are white
// space.
struct Word {
  std::uint32_t hash;
  bool is_character;       // of a script without spaces
  std::size_t begin, end;  // from its first letter to after its last, in bytes
};

// What becomes of punctuation, symbols, and marks that are not part of a letter. Programs that
// clean text with expressions such as [^\w\s] treat them alike.
enum class Punctuation : std::uint8_t {
  kAsDescribed,
  kSpaces,   // they are white space; markup is not recognized
  kNothing,  // they are nothing; markup is not recognized
};

// Appends the words of a text.
void words_of(std::string_view text, Punctuation punctuation, std::vector<Word>& out);

// The words of documents, from their tokens. Tokens that are words or parts of words need not be
// turned into text: a table has what each adds to the hash of a word.
class TokenWords {
 public:
  // Token i has the bytes [ends[i - 1], ends[i]), the first one those from 0. A token without
  // bytes, or without an entry, is white space. Throws std::invalid_argument if ends descend or
  // exceed the bytes.
  TokenWords(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> ends);

  // Appends the hashes of the words of a document. T is an unsigned integer of 2, 4 or 8 bytes.
  template <class T>
  void hashes(std::span<const T> tokens, std::vector<std::uint32_t>& out) const;

  // The same, with begin and end of each word in tokens instead of bytes.
  template <class T>
  void words(std::span<const T> tokens, std::vector<Word>& out) const;

  // Appends where phrases, whose tokens are hashes of words, are in the tokens of a document.
  template <class T>
  void find(const Phrases& phrases, std::int64_t document, std::span<const T> tokens,
            std::vector<Phrases::Hit>& out) const;

 private:
  // What a token does to the word that is open before it.
  enum Kind : std::uint8_t {
    kJoins,       // goes on with it
    kBegins,      // ends it, and begins another, or none
    kCharacters,  // ends it, and is words of one character
    kPartial,     // has parts of characters
    kComplex,     // needs the text of its neighbours, too
  };
  // The first six are pairs, for a token and the next one: if they have both flags, their text is
  // looked at.
  enum Flag : std::uint16_t {
    kMayBeMark = 1,      // ends in letters that a list marker may have
    kClosesMark = 2,     // begins with what follows these
    kEndsLink = 4,       // ends in a bracket, as the text of a link does
    kBeginsAddress = 8,  // begins with one, as the address after it does
    kEndsInMarkup = 16,  // ends in what may begin markup
    kHasNoSpace = 32,    // does not begin with white space of ASCII, so it may go on
    kUnusual = 64,       // neither joins nor begins a word
    kEnds = 128,         // ends a word
    kIsBoundary = 256,   // the text before it can be looked at without it
    kMarkup = 512,       // may have markup
  };
  static constexpr std::uint32_t kSeconds = kClosesMark | kBeginsAddress | kHasNoSpace;
  struct Entry {
    // The hash of its letters or of its character; for several characters their place in
    // characters_; for a token with parts of characters how many bytes of one it begins with, and
    // how many are missing after it.
    std::uint32_t add = 0;
    std::uint16_t flags = kEnds | kIsBoundary;
    std::uint8_t count = kNoLetters;  // of its letters, or characters
    Kind kind = kBegins;
  };
  static constexpr std::uint8_t kNoLetters = 255;  // those before it stay
  struct Chain;                                    // of tokens that make whole characters together

  static Entry entry_of(std::string_view token, std::vector<std::uint32_t>& characters);
  template <class T>
  const Entry& at(T token) const {  // those of 16 bits all have an entry
    const std::size_t last = entries_.size() - 1;
    return entries_[sizeof(T) == 2 || token < last ? static_cast<std::size_t>(token) : last];
  }
  template <class T>
  std::string_view bytes_of(T token) const;
  template <class T>
  std::size_t word_at(std::span<const T> tokens, std::size_t least, std::size_t i) const;
  template <class T>
  const Entry& chained(std::span<const T> tokens, std::size_t& size) const;
  template <class T>
  std::span<const std::uint32_t> look_at(std::span<const T> tokens, std::size_t first,
                                         std::size_t& last) const;

  std::uint64_t id_;  // unlike that of any other object of this process
  std::vector<std::uint8_t> bytes_;
  std::vector<std::int64_t> ends_;
  std::vector<Entry> entries_;  // the last one is for all other tokens
  std::vector<std::uint32_t> characters_;
};

}  // namespace tokpack
