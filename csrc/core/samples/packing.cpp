#include "core/samples/packing.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "core/base/prefetch.hpp"
#include "core/samples/best_fit.hpp"

namespace tokpack {
namespace {

constexpr std::int32_t kNone = BestFit::kNone;

void prefetch_lengths(const PackingInput& input, std::span<const std::uint64_t> documents) {
  for (const std::uint64_t document : documents) {
    prefetch(input.lengths + document * sizeof(std::int32_t));
  }
}

class Packer {
 public:
  Packer(const PackingInput& input, bool together)
      : input_(input),
        permutation_(input.documents, input.key),
        best_fit_(together ? input.room() : 0, PackingInput::kLeast),
        together_(together) {}

  PackedSamples run() {
    for (std::size_t w = 0; w < input_.windows(); ++w) {
      read(input_.window_begin(w), input_.window_begin(w + 1));
      const std::size_t mixed = assign();
      const std::int64_t first = samples_;
      add_mixed(mixed);
      out_.windows.push_back({first, samples_, entry()});
      add_full();
    }
    out_.windows.push_back({samples_, samples_, entry()});
    return std::move(out_);
  }

 private:
  std::int64_t entry() const { return static_cast<std::int64_t>(out_.entries.size()); }

  void read(std::size_t begin, std::size_t end) {
    documents_.resize(end - begin);
    for (std::size_t i = 0; i < documents_.size(); ++i) documents_[i] = begin + i;
    for (std::size_t i = 0; i < documents_.size(); i += Permutation::kBatch) {
      const std::span batch(documents_.data() + i,
                            std::min(Permutation::kBatch, documents_.size() - i));
      permutation_.batch(batch);
      prefetch_lengths(input_, batch);
    }
    rests_.resize(documents_.size());
    full_.clear();
    for (std::size_t i = 0; i < documents_.size(); ++i) {
      const std::int64_t length = input_.length_of(documents_[i]);
      if (length < 0) {
        throw std::invalid_argument("document " + std::to_string(documents_[i]) + " has " +
                                    std::to_string(length) + " tokens");
      }
      const PackingInput::Cut cut = input_.cut(length);
      rests_[i] = static_cast<std::int32_t>(input_.room_of(cut.rest));
      if (cut.full > 0) full_.push_back({static_cast<std::uint16_t>(i), cut.full});
      count(length, cut);
    }
  }

  void count(std::int64_t length, const PackingInput::Cut& cut) {
    const std::int64_t pieces = cut.full + (cut.rest > 0 ? 1 : 0);
    const std::int64_t placed = cut.full * input_.capacity() + cut.rest;
    const std::int64_t repeated = pieces > 0 ? (pieces - 1) * input_.extra : 0;
    PackedSamples::Totals& totals = out_.totals;
    totals.tokens += length;
    totals.pieces += pieces;
    totals.placed += placed;
    totals.left_out += length - (placed - repeated);
    totals.labels += placed - pieces;
    totals.cut += length > input_.capacity() ? 1 : 0;
    totals.few += length < PackingInput::kLeast ? 1 : 0;
  }

  // The sample of each rest in sample_of_; their number.
  std::size_t assign() {
    sample_of_.assign(rests_.size(), kNone);
    if (together_) return best_fit_.pack(rests_, sample_of_);
    std::int32_t next = 0;
    for (std::size_t i = 0; i < rests_.size(); ++i) {
      if (rests_[i] > 0) sample_of_[i] = next++;
    }
    return static_cast<std::size_t>(next);
  }

  // Within a sample documents are in the order of the window, not by length.
  void add_mixed(std::size_t mixed) {
    begins_.assign(mixed + 1, 0);
    for (const std::int32_t sample : sample_of_) {
      if (sample != kNone) ++begins_[static_cast<std::size_t>(sample) + 1];
    }
    const std::size_t base = out_.entries.size();
    for (std::size_t s = 0; s < mixed; ++s) {
      begins_[s + 1] += begins_[s];
      note_start(entry() + begins_[s]);
    }
    out_.entries.resize(base + static_cast<std::size_t>(begins_[mixed]));
    next_.assign(begins_.begin(), begins_.end());
    for (std::size_t i = 0; i < sample_of_.size(); ++i) {
      if (sample_of_[i] == kNone) continue;
      const auto sample = static_cast<std::size_t>(sample_of_[i]);
      const std::int32_t place = next_[sample]++;
      const std::uint16_t flag = place == begins_[sample] ? PackedSamples::kFirst : 0;
      out_.entries[base + static_cast<std::size_t>(place)] =
          static_cast<std::uint16_t>(flag | static_cast<std::uint16_t>(i));
    }
  }

  void add_full() {
    for (const auto& [position, pieces] : full_) {
      for (std::int64_t k = 0; k < pieces; ++k) {
        note_start(entry());
        out_.entries.push_back(static_cast<std::uint16_t>(PackedSamples::kFirst | position));
      }
    }
  }

  void note_start(std::int64_t entry) {
    if (samples_++ % static_cast<std::int64_t>(PackedSamples::kEvery) == 0) {
      out_.starts.push_back(entry);
    }
  }

  struct Full {
    std::uint16_t position;
    std::int64_t pieces;
  };

  const PackingInput& input_;
  Permutation permutation_;
  BestFit best_fit_;
  bool together_;
  std::int64_t samples_ = 0;
  PackedSamples out_;
  std::vector<std::uint64_t> documents_;  // of the window, as are all below
  std::vector<std::int32_t> rests_, sample_of_, begins_, next_;
  std::vector<Full> full_;
};

[[noreturn]] void fail() {
  throw std::runtime_error("the packing is not of these documents, or their lengths have changed");
}

}  // namespace

void PackingInput::check() const {
  if (extra != 0 && extra != 1) {
    throw std::invalid_argument("extra is " + std::to_string(extra) + "; it must be 0 or 1");
  }
  if (seq_length < 1 || seq_length > kMaxCapacity - 1) {
    throw std::invalid_argument("a sequence length of " + std::to_string(seq_length) +
                                "; it must be 1 to 2^24 - 1 to pack documents");
  }
  if (multiple < 1 || seq_length % multiple != 0) {
    throw std::invalid_argument("a sequence length of " + std::to_string(seq_length) +
                                "; it must be a multiple of " + std::to_string(multiple));
  }
}

std::size_t PackingInput::window_begin(std::size_t window) const {
  const std::size_t count = windows();
  return window * (documents / count) + std::min(window, documents % count);
}

std::int64_t PackingInput::length_of(std::uint64_t document) const {
  std::int32_t length;
  std::memcpy(&length, lengths + document * sizeof(length), sizeof(length));
  return length;
}

PackingInput::Cut PackingInput::cut(std::int64_t length) const {
  if (capacity() < kLeast) return {0, 0};
  const std::int64_t full = length < capacity() ? 0 : (length - capacity()) / seq_length + 1;
  const std::int64_t rest = length - full * seq_length;
  return {full, rest < kLeast ? 0 : rest};
}

PackedSamples pack(const PackingInput& input, bool together) {
  input.check();
  return Packer(input, together).run();
}

Packing::Packing(const PackingInput& input, std::span<const std::uint16_t> entries,
                 std::span<const std::int64_t> starts,
                 std::span<const PackedSamples::Window> windows)
    : input_(input),
      permutation_(input.documents, input.key),
      entries_(entries),
      starts_(starts),
      windows_(windows) {
  input.check();
  const auto limit = static_cast<std::int64_t>(entries.size());
  bool fits = windows.size() == input.windows() + 1 && windows.front().first == 0;
  for (std::size_t w = 0; fits && w + 1 < windows.size(); ++w) {
    const PackedSamples::Window &here = windows[w], &next = windows[w + 1];
    fits = here.first <= here.first_full && here.first_full <= next.first && here.full_entry >= 0 &&
           here.full_entry <= limit && next.first - here.first_full <= limit - here.full_entry;
  }
  fits = fits && windows.back().first_full == windows.back().first;
  fits = fits && starts.size() ==
                     (static_cast<std::size_t>(windows.back().first) + PackedSamples::kEvery - 1) /
                         PackedSamples::kEvery;
  if (!fits) throw std::invalid_argument("the packing is not of these documents");
}

void Packing::locate(std::span<const std::int64_t> samples, std::vector<Piece>& pieces,
                     std::span<std::int64_t> counts) const {
  // Two samples in turn: the lengths of one are fetched while the other is found.
  Found pair[2];
  if (!samples.empty()) find(samples[0], pair[0]);
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (i + 1 < samples.size()) find(samples[i + 1], pair[(i + 1) % 2]);
    const std::size_t before = pieces.size();
    cut(pair[i % 2], pieces);
    counts[i] = static_cast<std::int64_t>(pieces.size() - before);
  }
}

void Packing::find(std::int64_t sample, Found& found) const {
  const auto after = std::upper_bound(
      windows_.begin(), windows_.end() - 1, sample,
      [](std::int64_t number, const PackedSamples::Window& w) { return number < w.first; });
  const auto window = static_cast<std::size_t>(after - windows_.begin()) - 1;
  const std::size_t begin = input_.window_begin(window);
  const std::size_t size = input_.window_begin(window + 1) - begin;
  const auto document_at = [&](std::uint16_t entry) {
    const std::size_t position = entry & (PackedSamples::kFirst - 1u);
    if (position >= size) fail();
    return begin + position;
  };
  found.documents.clear();
  found.piece = -1;
  const PackedSamples::Window& place = windows_[window];
  if (sample >= place.first_full) {
    // A document's full pieces follow one another, so its first entry counts them.
    const auto full = entries_.begin() + static_cast<std::ptrdiff_t>(place.full_entry);
    const auto entry = full + static_cast<std::ptrdiff_t>(sample - place.first_full);
    found.piece = entry - std::lower_bound(full, entry, *entry);
    found.documents.push_back(document_at(*entry));
  } else {
    const auto number = static_cast<std::size_t>(sample);
    std::int64_t entry = starts_[number / PackedSamples::kEvery];
    const auto limit = static_cast<std::int64_t>(entries_.size());
    if (entry < 0 || entry >= limit) fail();
    const auto is_first = [&](std::int64_t e) {
      return (entries_[static_cast<std::size_t>(e)] & PackedSamples::kFirst) != 0;
    };
    for (std::size_t skip = number % PackedSamples::kEvery; skip > 0; --skip) {
      do {
        if (++entry == limit) fail();
      } while (!is_first(entry));
    }
    do {
      found.documents.push_back(document_at(entries_[static_cast<std::size_t>(entry)]));
    } while (++entry < limit && !is_first(entry));
  }
  for (std::size_t i = 0; i < found.documents.size(); i += Permutation::kBatch) {
    const std::span batch(found.documents.data() + i,
                          std::min(Permutation::kBatch, found.documents.size() - i));
    permutation_.batch(batch);
    prefetch_lengths(input_, batch);
  }
}

void Packing::cut(const Found& found, std::vector<Piece>& pieces) const {
  std::int64_t room = input_.room();
  for (const std::uint64_t document : found.documents) {
    const PackingInput::Cut cut = input_.cut(input_.length_of(document));
    const bool whole = found.piece >= 0;
    const std::int64_t length = whole ? input_.capacity() : cut.rest;
    const std::int64_t taken = whole ? room : input_.room_of(length);
    if (length == 0 || taken > room || (whole && found.piece >= cut.full)) fail();
    room -= taken;
    const std::int64_t offset = (whole ? found.piece : cut.full) * input_.seq_length;
    pieces.push_back({static_cast<std::int64_t>(document), offset, length});
  }
}

}  // namespace tokpack
