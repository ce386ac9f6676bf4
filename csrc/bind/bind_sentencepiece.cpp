// SentencePiece models: what a file says, and its encoder.
#include "bind/encoder_binding.hpp"
#include "core/sentencepiece/model_file.hpp"
#include "core/sentencepiece/piece_encoder.hpp"

namespace tokpack {
namespace {

PieceModelFile parse(const py::buffer& raw) {
  const Bytes bytes(raw);
  const py::gil_scoped_release release;
  return PieceModelFile::parse(bytes.span());
}

py::list pieces(const PieceModelFile& model) {
  py::list rows;
  for (const Piece& piece : model.pieces) {
    rows.append(py::make_tuple(py::bytes(piece.text), static_cast<int>(piece.type)));
  }
  return rows;
}

std::vector<float> scores(const PieceModelFile& model) {
  std::vector<float> result;
  result.reserve(model.pieces.size());
  for (const Piece& piece : model.pieces) result.push_back(piece.score);
  return result;
}

py::object unknown_surface(const PieceModelFile& model) {
  if (!model.unknown_surface) return py::none();
  return py::bytes(*model.unknown_surface);
}

const char* model_type(const PieceModelFile& model) {
  switch (model.type) {
    case PieceModelType::kUnigram:
      return "Unigram";
    case PieceModelType::kBpe:
      return "BPE";
    case PieceModelType::kWord:
      return "word";
    case PieceModelType::kChar:
      return "char";
  }
  return "";
}

class PieceEncoderBinding final : public EncoderBinding {
 public:
  PieceEncoderBinding(const PieceModelFile& model, const std::string& dtype,
                      std::size_t cache_bytes, const std::string& level)
      : EncoderBinding(dtype) {
    const std::string why = model.why_not_native();
    if (!why.empty()) throw py::value_error(why);
    const Level chosen = parse_level(level);
    const py::gil_scoped_release release;
    encoder_ = make_piece_encoder(model, wide_, cache_bytes, chosen);
  }
};

}  // namespace

void bind_sentencepiece(py::module_& module) {
  py::class_<PieceModelFile>(module, "PieceModel")
      .def(py::init(&parse), py::arg("raw"))
      .def_property_readonly("pieces", &pieces)
      .def_property_readonly("scores", &scores)
      .def_property_readonly("end_piece",
                             [](const PieceModelFile& m) { return py::bytes(m.end_piece); })
      .def_property_readonly("begin_piece",
                             [](const PieceModelFile& m) { return py::bytes(m.begin_piece); })
      .def_property_readonly("unknown_surface", &unknown_surface)
      .def_property_readonly("type", &model_type)
      .def_property_readonly("has_rules",
                             [](const PieceModelFile& m) { return !m.charsmap.empty(); })
      .def_readonly("byte_fallback", &PieceModelFile::byte_fallback)
      .def_readonly("dummy_prefix", &PieceModelFile::dummy_prefix)
      .def_readonly("remove_extra_whitespace", &PieceModelFile::remove_extra_whitespace)
      .def_readonly("denormalizes", &PieceModelFile::denormalizes)
      .def_property_readonly("why_not_native", &PieceModelFile::why_not_native);
  py::class_<PieceEncoderBinding, EncoderBinding>(module, "PieceEncoder")
      .def(py::init<const PieceModelFile&, const std::string&, std::size_t, const std::string&>(),
           py::arg("model"), py::kw_only(), py::arg("dtype") = "uint16",
           py::arg("cache_bytes") = std::size_t{64} << 20, py::arg("level") = "auto");
}

}  // namespace tokpack
