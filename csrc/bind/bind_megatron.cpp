#include "bind/bind.hpp"
#include "core/megatron_order.hpp"

namespace tokpack {
namespace {

template <class T>
std::span<T> elements(py::array& array) {
  return {static_cast<T*>(array.mutable_data()), static_cast<std::size_t>(array.size())};
}

void shuffle(Mt19937& random, py::array values) {
  if (values.ndim() != 1 || values.dtype().kind() == 'f' ||
      (values.shape(0) > 1 && values.strides(0) != values.itemsize()) ||
      (values.itemsize() != 4 && values.itemsize() != 8) ||
      reinterpret_cast<std::uintptr_t>(values.data()) %
          static_cast<std::size_t>(values.itemsize())) {
    throw py::value_error("only a contiguous, aligned array of 32-bit or 64-bit integers [n]");
  }
  if (values.itemsize() == 4) {
    const auto span = elements<std::uint32_t>(values);
    const py::gil_scoped_release release;
    numpy_shuffle(random, span);
  } else {
    const auto span = elements<std::uint64_t>(values);
    const py::gil_scoped_release release;
    numpy_shuffle(random, span);
  }
}

py::tuple random_state(const Mt19937& random) {
  const auto& state = random.state();
  return py::make_tuple(
      py::array_t<std::uint32_t>(static_cast<py::ssize_t>(state.size()), state.data()),
      random.position());
}

void check_lengths(const py::array& lengths, const py::array& narrow) {
  if (lengths.dtype().kind() != 'i' || lengths.itemsize() != 4) {
    throw py::value_error("lengths must be int32");
  }
  if (lengths.ndim() != 1 || narrow.ndim() != 1 || lengths.size() != narrow.size()) {
    throw py::value_error("lengths and narrow ones must be as many");
  }
}

std::int64_t narrow(const py::array& lengths, py::array_t<std::uint16_t, py::array::c_style> out) {
  check_lengths(lengths, out);
  const Bytes bytes(lengths);
  const std::span<std::uint16_t> span = elements<std::uint16_t>(out);
  const py::gil_scoped_release release;
  return narrow_lengths(bytes.span().data(), span);
}

// A walk, and the arrays that it reads, which are not copied.
class HeldSampleWalk {
 public:
  using Documents = py::array_t<std::int32_t, py::array::c_style>;
  using Narrow = py::array_t<std::uint16_t, py::array::c_style>;

  HeldSampleWalk(const py::array& lengths, Narrow narrow, std::int64_t first, Documents documents,
                 std::int64_t seq_length, bool extra)
      : bytes_(lengths), narrow_(std::move(narrow)), documents_(std::move(documents)) {
    check_lengths(lengths, narrow_);
    if (seq_length < 1) throw py::value_error("seq_length must be positive");
    const Lengths known{
        bytes_.span().data(), {narrow_.data(), static_cast<std::size_t>(narrow_.size())}, first};
    const std::span<const std::int32_t> span(documents_.data(),
                                             static_cast<std::size_t>(documents_.size()));
    walk_ = std::make_unique<SampleWalk>(known, span, seq_length, extra);
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

  Bytes bytes_;
  Narrow narrow_;
  Documents documents_;
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
  module.def("narrow_lengths", &narrow, py::arg("lengths"), py::arg("out").noconvert());
  py::class_<HeldSampleWalk>(module, "SampleWalk")
      .def(py::init<const py::array&, HeldSampleWalk::Narrow, std::int64_t,
                    HeldSampleWalk::Documents, std::int64_t, bool>(),
           py::arg("lengths"), py::arg("narrow").noconvert(), py::arg("first"),
           py::arg("documents").noconvert(), py::arg("seq_length"), py::kw_only(), py::arg("extra"))
      .def("rows", &HeldSampleWalk::rows, py::arg("count"), py::kw_only(), py::arg("wide"));
  module.def("megatron_blend", &blend, py::arg("weights"), py::arg("size"), py::kw_only(),
             py::arg("limits") = std::vector<std::int64_t>{}, py::arg("fused") = false);
}

}  // namespace tokpack
