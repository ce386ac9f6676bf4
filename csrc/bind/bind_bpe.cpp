// ByteLevelBPE, the merges of a vocabulary of ranks, and the levels of the machine.
#include <algorithm>
#include <cstring>
#include <optional>

#include "bind/encoder_binding.hpp"
#include "core/bpe/ranked_merges.hpp"

namespace tokpack {
namespace {

using AddedTuple = std::tuple<std::string, std::uint32_t, bool, bool>;
using MergeRows = py::array_t<std::int32_t, py::array::c_style | py::array::forcecast>;

std::vector<Merge> parse_merges(const MergeRows& rows) {
  if (rows.ndim() != 2 || rows.shape(1) != 3) {
    throw py::value_error("merges must have shape [m, 3]: left, right, product");
  }
  const auto view = rows.unchecked<2>();
  std::vector<Merge> merges(static_cast<std::size_t>(view.shape(0)));
  for (py::ssize_t i = 0; i < view.shape(0); ++i) {
    if (view(i, 0) < 0 || view(i, 1) < 0 || view(i, 2) < 0) {
      throw py::value_error("merge " + std::to_string(i) + " has a negative id");
    }
    merges[static_cast<std::size_t>(i)] = {static_cast<std::uint32_t>(view(i, 0)),
                                           static_cast<std::uint32_t>(view(i, 1)),
                                           static_cast<std::uint32_t>(view(i, 2))};
  }
  return merges;
}

class ByteLevelBpeBinding final : public EncoderBinding {
 public:
  ByteLevelBpeBinding(const std::vector<std::optional<py::bytes>>& vocab, const MergeRows& merges,
                      const std::string& pattern, const std::vector<AddedTuple>& added,
                      const std::string& special_tokens, bool nfc, bool ignore_merges,
                      const std::string& dtype, std::size_t cache_bytes, const std::string& level)
      : EncoderBinding(dtype) {
    if (special_tokens != "text" && special_tokens != "encode") {
      throw py::value_error("special_tokens '" + special_tokens + "' is neither text nor encode");
    }
    const auto known_pattern = pattern_by_name(pattern);
    if (!known_pattern) throw py::value_error("pattern '" + pattern + "' is unknown");

    std::array<std::uint32_t, 256> byte_ids;
    byte_ids.fill(BpeModel::kNoToken);
    std::vector<std::string> words(vocab.size());
    for (std::uint32_t id = 0; id < vocab.size(); ++id) {
      if (!vocab[id]) continue;
      words[id] = *vocab[id];
      if (words[id].size() == 1) byte_ids[static_cast<std::uint8_t>(words[id][0])] = id;
    }
    vocab_size_ = vocab.size();
    std::vector<AddedToken> tokens;
    for (const auto& [content, id, special, normalized] : added) {
      if (id >= BpeModel::kIdLimit)
        throw py::value_error("added token '" + content + "': id " + std::to_string(id) +
                              " is out of range");
      tokens.push_back({content, id, special, normalized});
      vocab_size_ = std::max<std::size_t>(vocab_size_, id + std::size_t{1});
    }
    const std::vector<Merge> rules = parse_merges(merges);
    const BpeOptions options{*known_pattern, nfc, special_tokens == "encode", cache_bytes,
                             parse_level(level)};
    const py::gil_scoped_release release;
    encoder_ = make_bpe_encoder(
        BpeModel(byte_ids, rules, ignore_merges ? WholeWords(words) : WholeWords()),
        std::move(tokens), words, wide_, static_cast<std::uint32_t>(vocab_size_), options);
  }

 private:
  std::size_t vocab_size_ = 0;
};

py::tuple ranked_merges(const std::vector<std::optional<py::bytes>>& vocab) {
  std::vector<std::string_view> tokens(vocab.size());
  for (std::size_t rank = 0; rank < vocab.size(); ++rank) {
    if (vocab[rank]) tokens[rank] = std::string_view(*vocab[rank]);
  }
  RankedMerges found;
  {
    const py::gil_scoped_release release;
    found = merges_of_ranks(tokens);
  }
  static_assert(sizeof(Merge) == 3 * sizeof(std::int32_t));
  py::array_t<std::int32_t> merges({static_cast<py::ssize_t>(found.merges.size()), py::ssize_t{3}});
  std::memcpy(merges.mutable_data(), found.merges.data(), found.merges.size() * sizeof(Merge));
  return py::make_tuple(merges, found.unmergeable);
}

}  // namespace

void bind_bpe(py::module_& module) {
  module.def("simd_levels", [] {
    std::vector<std::string> names;
    for (const Level level : levels()) names.emplace_back(level_name(level));
    return names;
  });
  module.def("ranked_merges", &ranked_merges, py::arg("vocab"));
  py::class_<Encoded>(module, "Encoded")
      .def_readonly("ids", &Encoded::ids)
      .def_readonly("lengths", &Encoded::lengths)
      .def_readonly("special", &Encoded::special);
  py::class_<ByteLevelBpeBinding>(module, "ByteLevelBPE")
      .def(py::init<const std::vector<std::optional<py::bytes>>&, const MergeRows&,
                    const std::string&, const std::vector<AddedTuple>&, const std::string&, bool,
                    bool, const std::string&, std::size_t, const std::string&>(),
           py::kw_only(), py::arg("vocab"), py::arg("merges"), py::arg("pattern"), py::arg("added"),
           py::arg("special_tokens"), py::arg("nfc") = false, py::arg("ignore_merges") = false,
           py::arg("dtype") = "uint16", py::arg("cache_bytes") = std::size_t{64} << 20,
           py::arg("level") = "auto")
      .def("encode", &ByteLevelBpeBinding::encode, py::arg("data"), py::arg("spans"),
           py::arg("before") = std::vector<std::uint32_t>{},
           py::arg("after") = std::vector<std::uint32_t>{})
      .def("cache_info", &ByteLevelBpeBinding::cache_info);
}

}  // namespace tokpack
