// Words of text as evaluation sets are compared by: without case, accents and punctuation.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "core/documents/phrases.hpp"

namespace tokpack {

// A word is what stands between white space, in lower case and form NFKD, without marks (accents),
// punctuation and symbols; long dashes, slashes, bars, bullets and dots as one character are white
// space. Of scripts that are written without spaces every character is a word of its own. Markup is
// no text: a tag of HTML is white space, an entity is its character if it is a number and else
// nothing, the address of a link of Markdown is nothing; \n, \r, \t and \u00e9, as JSON has them,
// are what they say. A number with a dot, a bracket or a colon right behind it, or a letter with
// one of the last two, is the mark of a list and no word. Bytes that are no UTF-8 are white space.
struct Word {
  std::uint32_t hash;
  bool is_character;       // of a script without spaces
  std::size_t begin, end;  // from its first letter to behind its last, in bytes
};

// What becomes of punctuation and symbols, and of marks that are no part of a letter: who cleans
// text by expressions such as [^\w\s] takes these for the same.
enum class Punctuation : std::uint8_t {
  kAsDescribed,
  kSpaces,   // all of it is white space, and there is no markup
  kNothing,  // nor is there any with this, but none is white space
};

// Appends the words of a text.
void words_of(std::string_view text, Punctuation punctuation, std::vector<Word>& out);

// The words of documents by their tokens, without their text where tokens are whole words or parts
// of such: of each the table has what it adds to the hash of a word.
class TokenWords {
 public:
  // Token i has the bytes [ends[i - 1], ends[i]), the first one those from 0; one without bytes is
  // white space, as any token is that has no entry. Throws std::invalid_argument where ends go down
  // or beyond the bytes.
  TokenWords(std::span<const std::uint8_t> bytes, std::span<const std::int64_t> ends);

  // Appends the hashes of the words of a document. T is an unsigned integer of 2, 4 or 8 bytes.
  template <class T>
  void hashes(std::span<const T> tokens, std::vector<std::uint32_t>& out) const;

  // The same by its text; a word is in the tokens [begin, end) instead of bytes.
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
    kComplex,     // has to be looked at with what stands beside it
  };
  // Each of the first pairs is of a token and of the one behind it: where that has the second flag,
  // both are looked at.
  enum Flag : std::uint16_t {
    kMayBeMark = 1,      // ends in letters as the mark of a list has
    kClosesMark = 2,     // begins with what stands behind these
    kEndsLink = 4,       // ends in a bracket, as the text of a link does
    kBeginsAddress = 8,  // begins with one, as the address behind it does
    kEndsInMarkup = 16,  // ends in what may be the beginning of markup
    kHasNoSpace = 32,    // does not begin with white space of ASCII, so that it may be
    kUnusual = 64,       // neither joins nor begins a word
    kEnds = 128,         // ends a word
    kIsBoundary = 256,   // what is before it can be looked at without it
    kMarkup = 512,       // may have markup
  };
  static constexpr std::uint32_t kSeconds = kClosesMark | kBeginsAddress | kHasNoSpace;
  struct Entry {
    // The hash of its letters, or of its character; the place of several; of a token with parts of
    // characters the bytes of one at its front, and behind its end.
    std::uint32_t add = 0;
    std::uint16_t flags = kEnds | kIsBoundary;
    std::uint8_t count = kNoLetters;  // of its letters, or characters
    Kind kind = kBegins;
  };
  static constexpr std::uint8_t kNoLetters = 255;  // stay of those before it
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

  std::uint64_t id_;  // of this object, of all that there were
  std::vector<std::uint8_t> bytes_;
  std::vector<std::int64_t> ends_;
  std::vector<Entry> entries_;  // the last one is for tokens that have none
  std::vector<std::uint32_t> characters_;
};

}  // namespace tokpack
