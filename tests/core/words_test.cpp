// What long words and full caches come to: cutting words where no merge reaches, and remembering
// words in little room.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bpe_twin.hpp"
#include "check.hpp"
#include "core/bpe/joinable_characters.hpp"
#include "core/bpe/word_cache.hpp"
#include "core/sentencepiece/piece_cutter.hpp"

namespace tokpack::test {
namespace {

using Ids = std::vector<std::uint32_t>;

const std::uint8_t* bytes_of(const std::string& text) {
  return reinterpret_cast<const std::uint8_t*>(text.data());
}

std::string random_word(std::mt19937& random, std::size_t characters) {
  constexpr std::string_view kCharacters[] = {"a",      "b",      " ",      "\u00e9", "\u0436",
                                              "\u0437", "\u4e2d", "\u6587", "\u0e01", "\U0001f600"};
  std::string word;
  while (characters-- > 0) word += kCharacters[random() % std::size(kCharacters)];
  return word;
}

// The pieces of a word merge to what the word merges to.
void test_pieces(bool reversed) {
  std::mt19937 random(3);
  std::size_t cut = 0, whole = 0;
  for (int round = 0; round < 40; ++round) {
    const Vocabulary v = random_vocabulary(random, random_word(random, 60), 10, 1 + round);
    std::vector<Merge> merges = v.merges;
    if (reversed) std::reverse(merges.begin(), merges.end());  // products before their parts
    const JoinableCharacters joinable(merges, symbol_ends(v.byte_ids, merges));
    for (int i = 0; i < 40; ++i) {
      const std::string word = random_word(random, 1 + random() % (i % 4 == 0 ? 40 : 12));
      std::vector<std::uint32_t> starts(word.size() + 1);
      const auto size = static_cast<std::uint32_t>(word.size());
      const std::string behind = word + random_word(random, JoinableCharacters::kBlock);
      const std::size_t count = joinable.cut(bytes_of(behind), 0, size, starts.data());
      (count > 1 ? cut : whole) += 1;
      Ids ids;
      for (std::size_t k = 0; k < count; ++k) {
        const Ids piece = merge_slowly(v, word.substr(starts[k], starts[k + 1] - starts[k]));
        ids.insert(ids.end(), piece.begin(), piece.end());
      }
      CHECK(starts[0] == 0 && starts[count] == size);
      CHECK(ids == merge_slowly(v, word));
    }
  }
  CHECK(cut > 100 && whole > 100);
}

// No piece of a vocabulary that is in a text reaches across a cut.
void test_cuts_between_pieces(Level level) {
  std::mt19937 random(5);
  std::size_t cut = 0, uncut = 0;
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> pieces;
    for (int i = 0; i < 4 + round; ++i) pieces.push_back(random_word(random, 2 + random() % 2));
    PieceCutter cutter(pieces, round % 4 != 0, false, level);
    const std::string text = random_word(random, 100);
    const std::string behind = text + std::string(kKeySlack, '\0');
    std::vector<bool> begins(text.size() + 1);
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      const auto starts = cutter.next(bytes_of(behind), text.size(), &at);
      CHECK(starts.front() == begin && starts.back() == at);
      CHECK(std::is_sorted(starts.begin(), starts.end(), std::less_equal<>()));
      for (const std::uint32_t start : starts) begins[start] = true;
      cut += starts.size() - 2;
    }
    for (const std::string& piece : pieces) {
      for (std::size_t at = 0; (at = text.find(piece, at)) != std::string::npos; ++at) {
        for (std::size_t i = at + 1; i < at + piece.size(); ++i) CHECK(!begins[i]);
        ++uncut;
      }
    }
  }
  CHECK(cut > 1000 && uncut > 1000);
}

// A symbol that two merges make of different text has no ends to rely on: nothing is cut.
void test_symbols_of_two_texts() {
  Vocabulary v;
  v.byte_ids.fill(BpeModel::kNoToken);
  for (std::uint32_t b = 0; b < 4; ++b) v.byte_ids["ab\xC3\xA9"[b] & 0xFF] = b;
  const Merge merges[] = {{0, 1, 4}, {1, 0, 4}};
  const std::string word = "a\u00e9a\u00e9" + std::string(JoinableCharacters::kBlock, 'a');
  std::vector<std::uint32_t> starts(7);
  const auto joinable = [&](std::span<const Merge> some) {
    return JoinableCharacters(some, symbol_ends(v.byte_ids, some));
  };
  CHECK(joinable({merges, 1}).cut(bytes_of(word), 0, 6, starts.data()) == 3);
  CHECK(joinable(merges).cut(bytes_of(word), 0, 6, starts.data()) == 1);
}

// What a cache knows of a word is right, however many words of whatever size crowd each other out.
template <class Id>
void test_cache(std::size_t buckets, std::size_t words) {
  std::mt19937 random(7);
  // A poor hash, so that neighbours are full early.
  const auto hash = [](const WordKey& key) {
    return std::uint64_t{key.bytes[0]} * 7 + key.bytes[1];
  };
  constexpr std::size_t kMost = WordBucket<Id>::kMaxIds;
  WordCache<Id> cache(buckets * 64);
  std::map<std::string, Ids> known;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < words; ++i) {
    std::string name(2 + random() % 14, 'x');
    for (char& c : name) c = static_cast<char>('a' + random() % 8);
    names.push_back(name);
    known.emplace(name, Ids());
  }
  for (auto& [name, ids] : known) {
    ids.resize(1 + random() % std::min(kMost + 1, name.size()));
    for (std::uint32_t& id : ids) id = random() % 60000;
  }
  std::size_t hits = 0, wide = 0, elsewhere = 0;
  for (std::size_t i = 0; i < 40 * words; ++i) {
    const auto& [name, ids] = *known.find(names[random() % names.size()]);
    const WordKey key = WordKey::of(bytes_of(name), name.size());
    const auto& home = cache.buckets()[hash(key) & cache.mask()];
    const WordSlot<Id>* slot = nullptr;
    for (const auto& own : home.slots) slot = own.key == key ? &own : slot;
    const auto found = slot != nullptr ? typename WordCache<Id>::Found{slot, false}
                                       : cache.find_displaced(key, hash(key));
    if (found.slot == nullptr) {
      elsewhere += found.elsewhere;
      CHECK(!found.elsewhere || ids.size() > WordSlot<Id>::kMaxIds);
      if (!found.elsewhere) cache.insert(key, hash(key), ids.data(), ids.size());
      continue;
    }
    ++hits;
    wide += ids.size() > WordSlot<Id>::kMaxIds;
    CHECK(found.slot->key == key && found.slot->count() == ids.size());
    Ids copied(ids.size());
    WordBucket<Id>::copy_ids(*found.slot, copied.data());
    CHECK(copied == ids);
  }
  CHECK(hits > 0 && (words != 200 || (wide > 0 && elsewhere > 0)));
}

}  // namespace
}  // namespace tokpack::test

int main() {
  using namespace tokpack::test;
  test_pieces(false);
  test_pieces(true);
  test_symbols_of_two_texts();
  for (const tokpack::Level level : tokpack::levels()) test_cuts_between_pieces(level);
  for (const std::size_t words : {20u, 200u, 2000u}) {
    test_cache<std::uint16_t>(64, words);
    test_cache<std::uint32_t>(64, words);
  }
  return report();
}
