// Bindings of what makes samples of rows: gathering, and the arrays of a training step.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <variant>

#include "bind/arrays.hpp"
#include "bind/bus_errors.hpp"
#include "core/samples/gather_tokens.hpp"
#include "core/samples/listed_samples.hpp"
#include "core/samples/loss_tracks.hpp"
#include "core/samples/sample_arrays.hpp"

namespace tokpack {
namespace {

std::span<const Row> row_span(const Int64s& rows) {
  static_assert(sizeof(Row) == 3 * sizeof(std::int64_t));
  if (rows.ndim() != 2 || rows.shape(1) != 3 || !is_aligned(rows)) {
    throw py::value_error("rows must be aligned int64 [k, 3]");
  }
  return {reinterpret_cast<const Row*>(rows.data()), static_cast<std::size_t>(rows.shape(0))};
}

// An array to write into, [lines, width] or, with width 0, [lines].
template <class T>
T* lines_of(Array<T>& array, py::ssize_t lines, py::ssize_t width, const char* name) {
  const bool right = width == 0
                         ? array.ndim() == 1 && array.shape(0) == lines
                         : array.ndim() == 2 && array.shape(0) == lines && array.shape(1) == width;
  if (!right || !is_aligned(array)) {
    throw py::value_error(std::string(name) + " does not have the shape of the batch");
  }
  return array.mutable_data();
}

std::span<std::int64_t> text_of(Int64s& text) {
  if (text.ndim() != 2 || text.shape(1) < 1 || !is_aligned(text)) {
    throw py::value_error("text must be aligned int64 [samples, tokens]");
  }
  return {text.mutable_data(), static_cast<std::size_t>(text.size())};
}

Layout layout_of(const Int64s& counts, const Int64s& places, const Int64s& text,
                 std::int64_t multiple) {
  return {vector_of(counts, "counts"), vector_of(places, "places"), text.shape(1), multiple};
}

Int64s lay_out_rows(const Int64s& rows, const Int64s& counts, const Int64s& places, Int64s& text,
                    std::int64_t multiple) {
  const auto out = text_of(text);
  const auto span = row_span(rows);
  Int64s targets(static_cast<py::ssize_t>(span.size()));
  lay_out(span, layout_of(counts, places, text, multiple), {targets.mutable_data(), span.size()},
          out);
  return targets;
}

TokenType type_of(const py::array& tokens) {
  const char kind = tokens.dtype().kind();
  const auto order = tokens.dtype().byteorder();
  const bool one_byte = tokens.itemsize() == 1;
  if (tokens.ndim() == 1 && (tokens.flags() & py::array::c_style) &&
      (one_byte || order == '<' || (order == '=' && PY_LITTLE_ENDIAN))) {
    if (kind == 'u' && one_byte) return TokenType::kUint8;
    if (kind == 'i' && one_byte) return TokenType::kInt8;
    if (kind == 'i' && tokens.itemsize() == 2) return TokenType::kInt16;
    if (kind == 'u' && tokens.itemsize() == 2) return TokenType::kUint16;
    if (kind == 'i' && tokens.itemsize() == 4) return TokenType::kInt32;
    if (kind == 'i' && tokens.itemsize() == 8) return TokenType::kInt64;
  }
  throw py::value_error("tokens of " + std::string(py::str(tokens.dtype())) +
                        ": they must be one dimension of a dtype of the format, little endian");
}

// A TokenFile and the arrays that it reads, which are not copied.
class HeldTokenFile {
 public:
  HeldTokenFile(py::array tokens, Int64s pointers, Array<std::int32_t> lengths,
                const std::string& level, std::optional<py::array> numbers, std::size_t token_bytes)
      : tokens_(std::move(tokens)),
        pointers_(std::move(pointers)),
        lengths_(std::move(lengths)),
        numbers_(std::move(numbers)),
        file_(make(parse_level(level), token_bytes)) {}

  std::int64_t gather(const Int64s& rows, const Int64s& targets, Int64s& text) const {
    const auto out = text_of(text);
    const auto span = row_span(rows);
    const auto places = vector_of(targets, "targets");
    if (places.size() != span.size()) throw py::value_error("targets must be as many as rows");
    watch_bus_errors();
    const py::gil_scoped_release release;
    return wrong(file_.gather(span, places, out), span.size());
  }

  std::int64_t gather_samples(const Int64s& rows, const Int64s& counts, const Int64s& places,
                              Int64s& text, std::int64_t multiple) const {
    const auto out = text_of(text);
    const auto span = row_span(rows);
    const auto layout = layout_of(counts, places, text, multiple);
    watch_bus_errors();
    const py::gil_scoped_release release;
    thread_local std::vector<std::int64_t> targets;
    targets.resize(span.size());
    lay_out(span, layout, targets, out);
    return wrong(file_.gather(span, targets, out), span.size());
  }

 private:
  static std::int64_t wrong(std::size_t done, std::size_t rows) {
    return done == rows ? -1 : static_cast<std::int64_t>(done);
  }

  TokenFile make(Level level, std::size_t token_bytes) const {
    const TokenType type = type_of(tokens_);
    if (pointers_.ndim() != 1 || lengths_.ndim() != 1 || pointers_.size() != lengths_.size()) {
      throw py::value_error("pointers and lengths must be as many, in one dimension");
    }
    const std::span<const unsigned char> tokens(static_cast<const unsigned char*>(tokens_.data()),
                                                static_cast<std::size_t>(tokens_.nbytes()));
    return TokenFile(tokens, type, bytes_of(lengths_), bytes_of(pointers_),
                     static_cast<std::size_t>(lengths_.size()), level, view(), token_bytes);
  }

  ViewNumbers view() const {
    if (!numbers_) return {nullptr, 0, 0};
    const auto bytes = static_cast<std::size_t>(numbers_->itemsize());
    const char order = numbers_->dtype().byteorder();
    if (numbers_->dtype().kind() != 'u' || (bytes != 4 && bytes != 8) || numbers_->ndim() != 1 ||
        !(numbers_->flags() & py::array::c_style) || !(order == '<' || order == '=') ||
        !PY_LITTLE_ENDIAN) {
      throw py::value_error("numbers must be one dimension of uint32 or uint64");
    }
    return {bytes_of(*numbers_), static_cast<std::size_t>(numbers_->size()), bytes};
  }

  static const unsigned char* bytes_of(const py::array& array) {
    return static_cast<const unsigned char*>(array.data());
  }

  py::array tokens_;
  Int64s pointers_;  // these may be unaligned: a dataset's in its .idx are
  Array<std::int32_t> lengths_;
  std::optional<py::array> numbers_;
  TokenFile file_;
};

class Assembly {
 public:
  Assembly(std::int64_t length, bool extra, bool joined, bool boundaries,
           std::optional<std::int64_t> mask_eod, std::optional<std::int64_t> reset_at,
           std::optional<std::int64_t> cut_at, std::int64_t multiple)
      : length_(length) {
    if (multiple < 1 || (multiple > 1 && (joined || length % multiple != 0))) {
      throw py::value_error("rows at multiples of " + std::to_string(multiple));
    }
    if (length < 1 || length >= std::numeric_limits<std::int32_t>::max()) {
      throw py::value_error("samples of " + std::to_string(length) + " tokens");
    }
    rules_ = {static_cast<std::size_t>(length),
              extra,
              joined,
              boundaries,
              mask_eod,
              reset_at,
              cut_at,
              multiple};
  }

  void fill(Int64s& text, const Int64s& rows, const Int64s& counts, const Int64s& places,
            Array<float>& loss_mask, Int64s& positions, std::optional<Array<std::int32_t>>& edges,
            std::optional<Array<std::int32_t>>& longest) const {
    const auto words = text_of(text);
    const auto span = row_span(rows);
    const Layout layout = layout_of(counts, places, text, rules_.multiple);
    const py::ssize_t lines = text.shape(0);
    if (layout.width != length_ + 1) throw py::value_error("text must be [samples, length + 1]");
    if (rules_.boundaries && !(edges && longest)) throw py::value_error("nowhere to put documents");
    const SampleArrays first = {
        lines_of(loss_mask, lines, length_, "loss_mask"),
        lines_of(positions, lines, length_, "position_ids"),
        rules_.boundaries ? lines_of(*edges, lines, length_ + 1, "cu_seqlens") : nullptr,
        rules_.boundaries ? lines_of(*longest, lines, 0, "max_seqlen") : nullptr,
    };
    check(span, layout, lines);
    const py::gil_scoped_release release;
    std::size_t row = 0;
    for (std::size_t b = 0; b < layout.counts.size(); ++b) {
      const auto count = static_cast<std::size_t>(layout.counts[b]);
      assemble(rules_, span.subspan(row, count), words.data() + layout.places[b] * layout.width,
               line(first, layout.places[b]));
      row += count;
    }
  }

 private:
  SampleArrays line(const SampleArrays& first, std::int64_t place) const {
    if (!rules_.boundaries) {
      return {first.loss_mask + place * length_, first.positions + place * length_, nullptr,
              nullptr};
    }
    return {first.loss_mask + place * length_, first.positions + place * length_,
            first.edges + place * (length_ + 1), first.longest + place};
  }

  static void check(std::span<const Row> rows, const Layout& layout, std::int64_t lines) {
    if (layout.counts.size() != layout.places.size()) {
      throw py::value_error("places must be as many as counts");
    }
    std::size_t row = 0;
    for (std::size_t b = 0; b < layout.counts.size(); ++b) {
      const std::int64_t count = layout.counts[b], place = layout.places[b];
      if (place < 0 || place >= lines || count < 0 ||
          static_cast<std::uint64_t>(count) > rows.size() - row) {
        throw py::value_error("counts or places leave the batch");
      }
      std::int64_t filled = 0;
      for (const Row& one : rows.subspan(row, static_cast<std::size_t>(count))) {
        filled = round_up(filled, layout.multiple);
        if (one.count < 0 || one.count > layout.width - filled) {
          throw py::value_error("rows do not fit the sample");
        }
        filled += one.count;
      }
      row += static_cast<std::size_t>(count);
    }
  }

  std::int64_t length_;
  SampleRules rules_{};
};

LossTrack parse_track(const std::string& kind) {
  if (kind == "mask") return LossTrack::kMask;
  if (kind == "weights") return LossTrack::kWeights;
  if (kind == "labels") return LossTrack::kLabels;
  throw py::value_error("no track: " + kind);
}

std::int64_t apply_to_lines(const std::string& name, const Int64s& values, const Int64s& places,
                            Array<float>& loss_mask, std::optional<Int64s>& labels) {
  const LossTrack kind = parse_track(name);
  const auto lines = vector_of(places, "places");
  const auto count = static_cast<py::ssize_t>(lines.size());
  if (values.ndim() != 2 || values.shape(0) != count || values.shape(1) < 1 ||
      !is_aligned(values)) {
    throw py::value_error("values must be aligned int64 [places, length + 1]");
  }
  if (loss_mask.ndim() != 2) throw py::value_error("loss_mask must be [samples, length]");
  const py::ssize_t width = values.shape(1), samples = loss_mask.shape(0);
  float* mask = lines_of(loss_mask, samples, width - 1, "loss_mask");
  if ((kind == LossTrack::kLabels) != labels.has_value()) {
    throw py::value_error("labels are written where they are the track, and only there");
  }
  std::int64_t* text = labels ? lines_of(*labels, samples, width, "labels") : nullptr;
  for (const std::int64_t place : lines) {
    if (place < 0 || place >= samples) throw py::value_error("places leave the batch");
  }
  const py::gil_scoped_release release;
  const auto all = static_cast<std::size_t>(width);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::span own(values.data() + static_cast<py::ssize_t>(i) * width, all);
    const std::span out(mask + lines[i] * (width - 1), all - 1);
    const auto to = text == nullptr ? std::span<std::int64_t>()
                                    : std::span<std::int64_t>(text + lines[i] * width, all);
    if (!apply_track(kind, own, out, to)) return static_cast<std::int64_t>(i);
  }
  return -1;
}

// Memory for arrays, used again when no array in it is held any more: the operating system takes
// longer to hand out fresh pages than gathering a batch takes.
class ArrayPool {
 public:
  py::array empty(const std::vector<py::ssize_t>& shape, const py::dtype& dtype) {
    auto bytes = static_cast<std::size_t>(dtype.itemsize());
    for (const py::ssize_t side : shape) {
      if (side < 0 || (side > 0 && bytes > kMost / static_cast<std::size_t>(side))) {
        throw py::value_error("a shape that no array has");
      }
      bytes *= static_cast<std::size_t>(side);
    }
    auto owner = std::make_unique<Block>(take(bytes));
    const py::capsule capsule(owner.get(), [](void* block) { delete static_cast<Block*>(block); });
    Block& block = *owner.release();
    return py::array(dtype, shape, block->memory.get(), capsule);
  }

 private:
  struct Memory {
    std::unique_ptr<std::byte[]> memory;
    std::size_t bytes;
  };
  using Block = std::shared_ptr<Memory>;

  // As many as the arrays of two batches: a loop still holds one while it makes the next.
  static constexpr std::size_t kKept = 10;
  static constexpr std::size_t kLargestKept = std::size_t{64} << 20;
  static constexpr std::size_t kMost = std::size_t{1} << 62;

  Block take(std::size_t bytes) {
    for (const Block& block : kept_) {
      if (block.use_count() == 1 && block->bytes == bytes) return block;
    }
    auto block = std::make_shared<Memory>(Memory{
        std::make_unique_for_overwrite<std::byte[]>(std::max(bytes, std::size_t{1})), bytes});
    if (bytes > kLargestKept) return block;
    if (kept_.size() < kKept) {
      kept_.push_back(block);
    } else {
      kept_[next_++ % kKept] = block;
    }
    return block;
  }

  std::vector<Block> kept_;
  std::size_t next_ = 0;
};

// The arrays of a listed order, which are not copied.
class HeldListedSamples {
 public:
  using Index = std::variant<Array<std::int32_t>, Int64s>;
  using Shuffle = std::variant<Array<std::uint32_t>, Int64s>;

  HeldListedSamples(Array<std::int32_t> lengths, Array<std::int32_t> documents, Index index,
                    Shuffle shuffle, bool extra)
      : lengths_(std::move(lengths)),
        documents_(std::move(documents)),
        index_(std::move(index)),
        shuffle_(std::move(shuffle)),
        listed_{lengths_of(lengths_), vector_of(documents_, "documents"), extra} {
    std::visit(
        [](const auto& array) {
          if (array.ndim() != 2 || array.shape(1) != 2 || !is_aligned(array)) {
            throw py::value_error("index must be aligned [samples + 1, 2]");
          }
        },
        index_);
    std::visit([](const auto& array) { vector_of(array, "shuffle"); }, shuffle_);
  }

  py::tuple locate_many(const Int64s& samples) const {
    const py::ssize_t known = std::visit([](const auto& array) { return array.size(); }, shuffle_);
    const auto find = [&](auto numbers, auto& rows, auto counts) {
      const std::size_t done = std::visit(
          [&](const auto& index, const auto& shuffle) {
            return listed_rows(listed_, flat(index), flat(shuffle), numbers, rows, counts);
          },
          index_, shuffle_);
      if (done == numbers.size()) return;
      throw py::value_error("sample " + std::to_string(numbers[done]) +
                            " has entries that are out of range");
    };
    return located<Row>(vector_of(samples, "samples"), known, find);
  }

 private:
  template <class T>
  static std::span<const T> flat(const Array<T>& array) {
    return {array.data(), static_cast<std::size_t>(array.size())};
  }

  Array<std::int32_t> lengths_;  // may be unaligned
  Array<std::int32_t> documents_;
  Index index_;
  Shuffle shuffle_;
  ListedSamples listed_;
};

}  // namespace

void bind_gather(py::module_& module) {
  module.def("lay_out", &lay_out_rows, py::arg("rows"), py::arg("counts"), py::arg("places"),
             py::arg("text").noconvert(), py::arg("multiple") = 1);

  py::class_<HeldTokenFile>(module, "TokenFile")
      .def(py::init<py::array, Int64s, Array<std::int32_t>, const std::string&,
                    std::optional<py::array>, std::size_t>(),
           py::arg("tokens"), py::arg("pointers"), py::arg("lengths"), py::arg("level") = "auto",
           py::arg("numbers") = py::none(), py::arg("token_bytes") = 0)
      .def("gather", &HeldTokenFile::gather, py::arg("rows"), py::arg("targets"),
           py::arg("text").noconvert())
      .def("gather_samples", &HeldTokenFile::gather_samples, py::arg("rows"), py::arg("counts"),
           py::arg("places"), py::arg("text").noconvert(), py::arg("multiple") = 1);

  py::class_<Assembly>(module, "Assembly")
      .def(py::init<std::int64_t, bool, bool, bool, std::optional<std::int64_t>,
                    std::optional<std::int64_t>, std::optional<std::int64_t>, std::int64_t>(),
           py::arg("length"), py::kw_only(), py::arg("extra"), py::arg("joined"),
           py::arg("boundaries"), py::arg("mask_eod"), py::arg("reset_at"),
           py::arg("cut_at") = py::none(), py::arg("multiple") = 1)
      .def("fill", &Assembly::fill, py::arg("text").noconvert(), py::arg("rows"), py::arg("counts"),
           py::arg("places"), py::arg("loss_mask").noconvert(), py::arg("position_ids").noconvert(),
           py::arg("cu_seqlens").noconvert(), py::arg("max_seqlen").noconvert());

  module.def("apply_track", &apply_to_lines, py::arg("kind"), py::arg("values"), py::arg("places"),
             py::arg("loss_mask").noconvert(), py::arg("labels").noconvert() = py::none());

  py::class_<ArrayPool>(module, "ArrayPool")
      .def(py::init<>())
      .def("empty", &ArrayPool::empty, py::arg("shape"), py::arg("dtype"));

  py::class_<HeldListedSamples>(module, "ListedSamples")
      .def(py::init<Array<std::int32_t>, Array<std::int32_t>, HeldListedSamples::Index,
                    HeldListedSamples::Shuffle, bool>(),
           py::arg("lengths"), py::arg("documents"), py::arg("index").noconvert(),
           py::arg("shuffle").noconvert(), py::arg("extra"))
      .def("locate_many", &HeldListedSamples::locate_many, py::arg("samples"));
}

}  // namespace tokpack
