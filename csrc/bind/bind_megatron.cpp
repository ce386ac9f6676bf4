#include "bind/arrays.hpp"
#include "core/samples/megatron_order.hpp"

namespace tokpack {
namespace {

template <class T>
std::span<T> elements(py::array& array) {
  return {static_cast<T*>(array.mutable_data()), static_cast<std::size_t>(array.size())};
}

template <class T>
void shuffle_as(Mt19937& random, py::array& values) {
  const auto span = elements<T>(values);
  const py::gil_scoped_release release;
  numpy_shuffle(random, span);
}

bool is_contiguous(const py::array& values) {
  return values.ndim() == 1 && (values.shape(0) < 2 || values.strides(0) == values.itemsize());
}

// Entries of sequences are numpy's structures of six bytes.
void check_entries(const py::array& entries) {
  if (!is_contiguous(entries) || entries.dtype().kind() != 'V' ||
      entries.itemsize() != sizeof(SequenceEntry) || !is_aligned(entries, alignof(SequenceEntry))) {
    throw py::value_error("entries must be contiguous structures of uint32 and uint16 [n]");
  }
}

void shuffle(Mt19937& random, py::array values) {
  const py::ssize_t size = values.itemsize();
  if (values.dtype().kind() == 'V' && size == sizeof(SequenceEntry)) {
    check_entries(values);
    return shuffle_as<SequenceEntry>(random, values);
  }
  if (!is_contiguous(values) || (size != 4 && size != 8) ||
      (values.dtype().kind() != 'i' && values.dtype().kind() != 'u') ||
      !is_aligned(values, static_cast<std::size_t>(size))) {
    throw py::value_error("only a contiguous, aligned array of 32-bit or 64-bit integers [n]");
  }
  if (size == 4) return shuffle_as<std::uint32_t>(random, values);
  shuffle_as<std::uint64_t>(random, values);
}

py::tuple random_state(const Mt19937& random) {
  const auto& state = random.state();
  return py::make_tuple(
      py::array_t<std::uint32_t>(static_cast<py::ssize_t>(state.size()), state.data()),
      random.position());
}

void check_lengths(const py::array& lengths) {
  if (lengths.ndim() != 1 || lengths.dtype().kind() != 'i' || lengths.itemsize() != 4) {
    throw py::value_error("lengths must be int32 [n]");
  }
}

void number(const py::array& lengths, std::int64_t first, py::array entries) {
  check_lengths(lengths);
  check_entries(entries);
  if (entries.size() != lengths.size()) throw py::value_error("an entry for each length");
  if (first < 0 || first + lengths.size() > std::int64_t{1} << 32) {
    throw py::value_error("sequences are numbered with 32 bits");
  }
  const Bytes bytes(lengths);
  const auto span = elements<SequenceEntry>(entries);
  const py::gil_scoped_release release;
  number_sequences(bytes.span().data(), first, span);
}

// A walk, and the arrays that it reads, which are not copied.
class HeldSampleWalk {
 public:
  HeldSampleWalk(py::array entries, const py::array& lengths, std::int64_t first,
                 std::int64_t seq_length, bool extra)
      : entries_(std::move(entries)), lengths_(lengths) {
    check_entries(entries_);
    check_lengths(lengths);
    if (seq_length < 1) throw py::value_error("seq_length must be positive");
    const std::span<const SequenceEntry> span(static_cast<const SequenceEntry*>(entries_.data()),
                                              static_cast<std::size_t>(entries_.size()));
    walk_ = std::make_unique<SampleWalk>(span, lengths_.span().data(),
                                         static_cast<std::size_t>(lengths.size()), first,
                                         seq_length, extra);
  }

  py::array rows(std::int64_t count, bool wide) {
    return wide ? take<std::int64_t>(count) : take<std::int32_t>(count);
  }

 private:
  template <class T>
  py::array take(std::int64_t count) {
    if (count < 0) throw py::value_error("the number of rows must not be negative");
    py::array_t<T> rows({static_cast<py::ssize_t>(count), py::ssize_t{2}});
    const std::span<T> span = elements<T>(rows);
    std::size_t filled = 0;
    {
      const py::gil_scoped_release release;
      filled = walk_->fill(span);
    }
    if (filled != static_cast<std::size_t>(count)) {
      throw py::value_error("the documents have too few tokens for so many samples");
    }
    return rows;
  }

  py::array entries_;
  Bytes lengths_;
  std::unique_ptr<SampleWalk> walk_;
};

py::tuple blend(const py::array_t<double, py::array::c_style>& weights, std::int64_t size,
                const std::vector<std::int64_t>& limits, bool fused) {
  if (size < 0) throw py::value_error("size must not be negative");
  if (weights.size() > 32767) throw py::value_error("no more than 32,767 datasets");
  if (!limits.empty() && limits.size() != static_cast<std::size_t>(weights.size())) {
    throw py::value_error("limits must be as many as weights, or none");
  }
  py::array_t<std::int16_t> datasets(size);
  py::array_t<std::int64_t> samples(size);
  const auto dataset_span = elements<std::int16_t>(datasets);
  const auto sample_span = elements<std::int64_t>(samples);
  const std::span<const double> shares(weights.data(), static_cast<std::size_t>(weights.size()));
  std::size_t placed = 0;
  {
    const py::gil_scoped_release release;
    placed = megatron_blend(shares, limits, fused, dataset_span, sample_span);
  }
  if (placed != sample_span.size()) throw py::value_error("the limits allow fewer samples");
  return py::make_tuple(datasets, samples);
}

}  // namespace

void bind_megatron(py::module_& module) {
  py::class_<Mt19937>(module, "RandomState")
      .def(py::init<std::uint32_t>(), py::arg("seed"))
      .def("shuffle", &shuffle, py::arg("values").noconvert())
      .def("state", &random_state);
  module.def("number_sequences", &number, py::arg("lengths"), py::arg("first"),
             py::arg("entries").noconvert());
  py::class_<HeldSampleWalk>(module, "SampleWalk")
      .def(py::init<py::array, const py::array&, std::int64_t, std::int64_t, bool>(),
           py::arg("entries").noconvert(), py::arg("lengths"), py::arg("first"),
           py::arg("seq_length"), py::kw_only(), py::arg("extra"))
      .def("rows", &HeldSampleWalk::rows, py::arg("count"), py::kw_only(), py::arg("wide"));
  module.def("megatron_blend", &blend, py::arg("weights"), py::arg("size"), py::kw_only(),
             py::arg("limits") = std::vector<std::int64_t>{}, py::arg("fused") = false);
}

}  // namespace tokpack
