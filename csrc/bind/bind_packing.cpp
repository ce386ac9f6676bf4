// Bindings of documents packed into samples.
#include <cstring>
#include <utility>

#include "bind/bind.hpp"
#include "core/samples/packing.hpp"

namespace tokpack {
namespace {

template <class T>
using Array = py::array_t<T, py::array::c_style>;

static_assert(sizeof(PackedSamples::Window) == 3 * sizeof(std::int64_t));
static_assert(sizeof(Packing::Piece) == 3 * sizeof(std::int64_t));

PackingInput make_input(const Array<std::int32_t>& lengths, std::int64_t seq_length,
                        std::int64_t extra, std::uint64_t key) {
  if (lengths.ndim() != 1) throw py::value_error("the lengths must have one dimension");
  return {static_cast<const unsigned char*>(lengths.request().ptr),
          static_cast<std::size_t>(lengths.size()), seq_length, extra, key};
}

// An array that owns the vector's memory; no copy.
template <class T, class V>
Array<T> own(std::vector<V>&& values, std::vector<py::ssize_t> shape) {
  auto held = std::make_unique<std::vector<V>>(std::move(values));
  const auto* data = reinterpret_cast<const T*>(held->data());
  const py::capsule owner(held.get(), [](void* p) { delete static_cast<std::vector<V>*>(p); });
  held.release();
  static const T none{};
  return Array<T>(std::move(shape), data != nullptr ? data : &none, owner);
}

py::dict pack_documents(const Array<std::int32_t>& lengths, std::int64_t seq_length,
                        std::int64_t extra, std::uint64_t key, bool together) {
  const PackingInput input = make_input(lengths, seq_length, extra, key);
  PackedSamples packed;
  {
    const py::gil_scoped_release release;
    packed = pack(input, together);
  }
  const auto& t = packed.totals;
  const std::vector<std::int64_t> totals{t.tokens, t.left_out, t.pieces, t.placed, t.labels};
  const auto count = [](const auto& values) { return static_cast<py::ssize_t>(values.size()); };
  const py::ssize_t entries = count(packed.entries), starts = count(packed.starts),
                    windows = count(packed.windows);
  py::dict result;
  result["entries"] = own<std::uint16_t>(std::move(packed.entries), {entries});
  result["starts"] = own<std::int64_t>(std::move(packed.starts), {starts});
  result["windows"] = own<std::int64_t>(std::move(packed.windows), {windows, 3});
  result["totals"] = Array<std::int64_t>(count(totals), totals.data());
  return result;
}

// A packing and the arrays that it reads, which are not copied.
class HeldPacking {
 public:
  HeldPacking(Array<std::int32_t> lengths, std::int64_t seq_length, std::int64_t extra,
              std::uint64_t key, Array<std::uint16_t> entries, Array<std::int64_t> starts,
              Array<std::int64_t> windows)
      : lengths_(std::move(lengths)),
        entries_(std::move(entries)),
        starts_(std::move(starts)),
        windows_(std::move(windows)),
        packing_(make_input(lengths_, seq_length, extra, key), elements(entries_),
                 elements(starts_), rows(windows_)) {}

  std::int64_t samples() const { return packing_.samples(); }

  Array<std::int64_t> locate(std::int64_t sample) const {
    return py::cast<Array<std::int64_t>>(locate_these({&sample, 1})[0]);
  }

  py::tuple locate_many(const Array<std::int64_t>& samples) const {
    if (samples.ndim() != 1) throw py::value_error("the samples must have one dimension");
    return locate_these(elements(samples));
  }

 private:
  template <class T>
  static std::span<const T> elements(const Array<T>& array) {
    if (reinterpret_cast<std::uintptr_t>(array.data()) % alignof(T) != 0) {
      throw py::value_error("the arrays must be aligned");
    }
    return {array.data(), static_cast<std::size_t>(array.size())};
  }

  static std::span<const PackedSamples::Window> rows(const Array<std::int64_t>& array) {
    if (array.ndim() != 2 || array.shape(1) != 3) throw py::value_error("windows must be [n, 3]");
    return {reinterpret_cast<const PackedSamples::Window*>(elements(array).data()),
            static_cast<std::size_t>(array.shape(0))};
  }

  py::tuple locate_these(std::span<const std::int64_t> samples) const {
    for (const std::int64_t sample : samples) {
      if (sample < 0 || sample >= packing_.samples()) {
        throw py::index_error("sample " + std::to_string(sample) + " of " +
                              std::to_string(packing_.samples()));
      }
    }
    thread_local std::vector<Packing::Piece> pieces;
    pieces.clear();
    Array<std::int64_t> counts(static_cast<py::ssize_t>(samples.size()));
    const std::span<std::int64_t> out(counts.mutable_data(), samples.size());
    {
      const py::gil_scoped_release release;
      packing_.locate(samples, pieces, out);
    }
    Array<std::int64_t> result({static_cast<py::ssize_t>(pieces.size()), py::ssize_t{3}});
    if (!pieces.empty()) {
      std::memcpy(result.mutable_data(), pieces.data(), pieces.size() * sizeof(pieces[0]));
    }
    return py::make_tuple(std::move(result), std::move(counts));
  }

  Array<std::int32_t> lengths_;  // may be unaligned: a dataset's lengths in its .idx are
  Array<std::uint16_t> entries_;
  Array<std::int64_t> starts_, windows_;
  Packing packing_;
};

}  // namespace

void bind_packing(py::module_& module) {
  module.def("pack", &pack_documents, py::arg("lengths"), py::arg("seq_length"), py::arg("extra"),
             py::arg("key"), py::kw_only(), py::arg("together"));
  py::class_<HeldPacking>(module, "Packing")
      .def(py::init<Array<std::int32_t>, std::int64_t, std::int64_t, std::uint64_t,
                    Array<std::uint16_t>, Array<std::int64_t>, Array<std::int64_t>>(),
           py::arg("lengths"), py::arg("seq_length"), py::arg("extra"), py::arg("key"),
           py::kw_only(), py::arg("entries"), py::arg("starts"), py::arg("windows"))
      .def("__len__", &HeldPacking::samples)
      .def("locate", &HeldPacking::locate, py::arg("sample"))
      .def("locate_many", &HeldPacking::locate_many, py::arg("samples"));
}

}  // namespace tokpack
