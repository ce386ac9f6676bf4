// Bindings of the orders of samples that need no index.
#include <algorithm>

#include "bind/arrays.hpp"
#include "core/samples/blend_order.hpp"
#include "core/samples/document_order.hpp"
#include "core/samples/permutation.hpp"

namespace tokpack {
namespace {

std::uint64_t checked_count(std::int64_t count) {
  if (count < 0 || static_cast<std::uint64_t>(count) > BlendOrder::kMaxSamples) {
    throw py::value_error(std::to_string(count) + " samples; it must be 0 to 2^62");
  }
  return static_cast<std::uint64_t>(count);
}

std::uint64_t mix_all(const py::args& values) {
  std::vector<std::uint64_t> numbers;
  numbers.reserve(values.size());
  for (const py::handle& value : values) {
    try {
      numbers.push_back(value.cast<std::uint64_t>());
    } catch (const py::cast_error&) {
      throw py::value_error(std::string(py::repr(value)) + " is not an integer of 0 to 2^64 - 1");
    }
  }
  return mix(numbers);
}

Permutation make_permutation(std::int64_t size, std::uint64_t key) {
  if (size < 0) throw py::value_error("a permutation of " + std::to_string(size) + " numbers");
  return Permutation(static_cast<std::uint64_t>(size), key);
}

Int64s permute_many(const Permutation& order, const Int64s& indices) {
  const auto in = vector_of(indices, "indices");
  Int64s result(indices.size());
  std::int64_t* out = result.mutable_data();
  const py::gil_scoped_release release;
  std::array<std::uint64_t, Permutation::kBatch> values;
  for (std::size_t begin = 0; begin < in.size(); begin += values.size()) {
    const std::size_t count = std::min(values.size(), in.size() - begin);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = checked(in[begin + i], order.size(), "number");
    }
    order.batch({values.data(), count});
    for (std::size_t i = 0; i < count; ++i) out[begin + i] = static_cast<std::int64_t>(values[i]);
  }
  return result;
}

BlendOrder make_blend(const Array<double>& weights) {
  if (weights.ndim() != 1) throw py::value_error("the weights must have one dimension");
  return BlendOrder({weights.data(), static_cast<std::size_t>(weights.size())});
}

py::tuple locate_in_blend(const BlendOrder& order, std::int64_t g) {
  const auto place = order.locate(checked(g, BlendOrder::kMaxSamples, "sample"));
  return py::make_tuple(place.dataset, place.sample);
}

py::tuple locate_many(const BlendOrder& order, std::int64_t begin, std::int64_t count) {
  const std::uint64_t first = checked_count(begin);
  if (checked_count(count) > BlendOrder::kMaxSamples - first) {
    throw py::value_error("the samples end beyond 2^62");
  }
  Array<std::int32_t> datasets(count);
  Int64s samples(count);
  std::int32_t* dataset = datasets.mutable_data();
  std::int64_t* sample = samples.mutable_data();
  {
    const py::gil_scoped_release release;
    for (std::int64_t i = 0; i < count; ++i) {
      const auto place = order.locate(first + static_cast<std::uint64_t>(i));
      dataset[i] = static_cast<std::int32_t>(place.dataset);
      sample[i] = static_cast<std::int64_t>(place.sample);
    }
  }
  return py::make_tuple(std::move(datasets), std::move(samples));
}

Int64s count_datasets(const BlendOrder& order, std::int64_t g) {
  const std::vector<std::uint64_t> counts = order.counts(checked_count(g));
  Int64s result(static_cast<py::ssize_t>(counts.size()));
  std::int64_t* out = result.mutable_data();
  for (std::size_t i = 0; i < counts.size(); ++i) out[i] = static_cast<std::int64_t>(counts[i]);
  return result;
}

// The order of an epoch and the array of lengths that it reads, which is not copied.
class HeldDocumentOrder {
 public:
  HeldDocumentOrder(Array<std::int32_t> lengths, std::int64_t seq_length, std::int64_t extra,
                    std::uint64_t key)
      : lengths_(std::move(lengths)), order_(make(lengths_, seq_length, extra, key)) {}

  const DocumentOrder& order() const { return order_; }

  Int64s locate(std::int64_t j) const {
    checked(j, static_cast<std::uint64_t>(order_.samples()), "sample");
    thread_local std::vector<DocumentOrder::Piece> pieces;
    order_.locate(j, pieces);
    return rows_of(pieces);
  }

  py::tuple locate_many(const Int64s& samples) const {
    return located<DocumentOrder::Piece>(vector_of(samples, "samples"), order_.samples(),
                                         [&](auto numbers, auto& pieces, auto counts) {
                                           order_.locate_many(numbers, pieces, counts);
                                         });
  }

 private:
  static DocumentOrder make(const Array<std::int32_t>& lengths, std::int64_t seq_length,
                            std::int64_t extra, std::uint64_t key) {
    const auto bytes = lengths_of(lengths);
    const auto count = static_cast<std::size_t>(lengths.size());
    const py::gil_scoped_release release;
    return DocumentOrder(bytes.data(), count, seq_length, extra, key);
  }

  Array<std::int32_t> lengths_;
  DocumentOrder order_;
};

}  // namespace

void bind_samples(py::module_& module) {
  module.def("mix", &mix_all);

  py::class_<Permutation>(module, "Permutation")
      .def(py::init(&make_permutation), py::arg("size"), py::arg("key"))
      .def("__len__", &Permutation::size)
      .def(
          "at",
          [](const Permutation& order, std::int64_t i) {
            return order.at(checked(i, order.size(), "number"));
          },
          py::arg("i"))
      .def(
          "inverse",
          [](const Permutation& order, std::int64_t i) {
            return order.inverse(checked(i, order.size(), "number"));
          },
          py::arg("i"))
      .def("many", &permute_many, py::arg("indices"));

  py::class_<BlendOrder>(module, "BlendOrder")
      .def(py::init(&make_blend), py::arg("weights"))
      .def("__len__", &BlendOrder::datasets)
      .def("locate", &locate_in_blend, py::arg("g"))
      .def("locate_many", &locate_many, py::arg("begin"), py::arg("count"))
      .def("counts", &count_datasets, py::arg("g"));

  py::class_<HeldDocumentOrder>(module, "DocumentOrder")
      .def(py::init<Array<std::int32_t>, std::int64_t, std::int64_t, std::uint64_t>(),
           py::arg("lengths"), py::arg("seq_length"), py::arg("extra"), py::arg("key"))
      .def_property_readonly("tokens",
                             [](const HeldDocumentOrder& held) { return held.order().tokens(); })
      .def_property_readonly("samples",
                             [](const HeldDocumentOrder& held) { return held.order().samples(); })
      .def("locate", &HeldDocumentOrder::locate, py::arg("j"))
      .def("locate_many", &HeldDocumentOrder::locate_many, py::arg("samples"));
}

}  // namespace tokpack
