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

template <class T>
py::array_t<T> build_index(const Bytes& lengths, std::span<const std::int32_t> documents,
                           std::int64_t seq_length, bool extra, std::int64_t samples) {
  py::array_t<T> rows({static_cast<py::ssize_t>(samples) + 1, py::ssize_t{2}});
  const std::span<T> span = elements<T>(rows);
  std::size_t built = 0;
  {
    const py::gil_scoped_release release;
    built = megatron_sample_index(lengths.span().data(), documents, seq_length, extra, span);
  }
  if (built != static_cast<std::size_t>(samples) + 1) {
    throw py::value_error("the documents have too few tokens for so many samples");
  }
  return rows;
}

py::array sample_index(const py::array& lengths,
                       const py::array_t<std::int32_t, py::array::c_style>& documents,
                       std::int64_t seq_length, bool extra, std::int64_t samples, bool wide) {
  if (lengths.dtype().kind() != 'i' || lengths.itemsize() != 4) {
    throw py::value_error("lengths must be int32");
  }
  if (seq_length < 1) throw py::value_error("seq_length must be positive");
  if (samples < 0) throw py::value_error("samples must not be negative");
  const Bytes bytes(lengths);
  const std::span<const std::int32_t> span(documents.data(),
                                           static_cast<std::size_t>(documents.size()));
  for (const std::int32_t document : span) {
    if (document < 0 || document >= lengths.size()) {
      throw py::value_error("document " + std::to_string(document) + " has no length");
    }
  }
  if (wide) return build_index<std::int64_t>(bytes, span, seq_length, extra, samples);
  return build_index<std::int32_t>(bytes, span, seq_length, extra, samples);
}

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
  module.def("megatron_sample_index", &sample_index, py::arg("lengths"), py::arg("documents"),
             py::arg("seq_length"), py::kw_only(), py::arg("extra"), py::arg("samples"),
             py::arg("wide"));
  module.def("megatron_blend", &blend, py::arg("weights"), py::arg("size"), py::kw_only(),
             py::arg("limits") = std::vector<std::int64_t>{}, py::arg("fused") = false);
}

}  // namespace tokpack
