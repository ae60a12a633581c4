// The arithmetic of the perceptron, and its description for the repository.
#include "mlp.hpp"

#include <cmath>
#include <random>

namespace train_digits {

using millrace::dtype;
using millrace::tensor_view;

namespace {

std::vector<std::uint64_t> shape_of(const auto& m) {
  return {static_cast<std::uint64_t>(m.rows()), static_cast<std::uint64_t>(m.cols())};
}

// Turns scores into probabilities minus the true classes, which is the slope of the loss. Returns
// the mean loss.
float slope_of_loss(matrix& scores, std::span<const int> classes) {
  scores.colwise() -= scores.rowwise().maxCoeff().eval();
  scores = scores.array().exp();
  scores.array().colwise() /= scores.rowwise().sum().array().eval();
  float loss = 0;
  for (Eigen::Index i = 0; i < scores.rows(); ++i) {
    auto& truth = scores(i, classes[static_cast<std::size_t>(i)]);
    loss -= std::log(std::max(truth, 1e-12F));
    truth -= 1;
  }
  auto count = static_cast<float>(scores.rows());
  scores /= count;
  return loss / count;
}

tensor_view dense_view(std::string name, matrix& m) {
  return tensor_view::dense(
    std::move(name), dtype::f32, shape_of(m),
    std::span{m.data(), static_cast<std::size_t>(m.size())});
}

tensor_view vector_view(std::string name, Eigen::RowVectorXf& v) {
  auto size = static_cast<std::size_t>(v.size());
  return tensor_view::dense(std::move(name), dtype::f32, {size}, std::span{v.data(), size});
}

} // namespace

linear::linear(std::string name, Eigen::Index inputs, Eigen::Index outputs, std::uint32_t seed)
  : label(std::move(name)), weight(outputs, inputs), bias(Eigen::RowVectorXf::Zero(outputs)),
    weight_velocity(matrix::Zero(outputs, inputs)),
    bias_velocity(Eigen::RowVectorXf::Zero(outputs)) {
  std::mt19937 random{seed};
  std::normal_distribution<float> spread{0, std::sqrt(2.0F / static_cast<float>(inputs))};
  for (Eigen::Index i = 0; i < weight.size(); ++i)
    weight.data()[i] = spread(random);
}

std::vector<tensor_view> linear::tensors() {
  return {dense_view(label + ".weight", weight), vector_view(label + ".bias", bias)};
}

std::vector<tensor_view> linear::velocities() {
  return {
    dense_view(label + ".weight.velocity", weight_velocity),
    vector_view(label + ".bias.velocity", bias_velocity)};
}

tensor_view strided_view(std::string name, Eigen::MatrixXf& m) {
  constexpr std::int64_t element = sizeof(float);
  return {
    {std::move(name), dtype::f32, shape_of(m)},
    reinterpret_cast<std::byte*>(m.data()),
    {element * m.rowStride(), element * m.colStride()}};
}

mlp::mlp(const std::vector<Eigen::Index>& widths, std::uint32_t seed) {
  for (std::size_t i = 1; i < widths.size(); ++i)
    layers_.emplace_back(
      "fc" + std::to_string(i), widths[i - 1], widths[i], seed + static_cast<std::uint32_t>(i));
}

void mlp::forward(const matrix& images, std::vector<matrix>& activations) const {
  activations.resize(layers_.size());
  const matrix* input = &images;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    auto& out = activations[i];
    out.noalias() = *input * layers_[i].weight.transpose();
    out.rowwise() += layers_[i].bias;
    if (i + 1 < layers_.size())
      out = out.cwiseMax(0);
    input = &out;
  }
}

void mlp::descend(linear& layer, const matrix& slope, const matrix& input, const sgd& how) {
  layer.weight_velocity *= how.momentum;
  layer.weight_velocity.noalias() -= how.rate * slope.transpose() * input;
  layer.bias_velocity = how.momentum * layer.bias_velocity - how.rate * slope.colwise().sum();
  layer.weight += layer.weight_velocity;
  layer.bias += layer.bias_velocity;
}

float mlp::learn(
  const matrix& images, std::span<const int> classes, const sgd& how,
  const std::function<void()>& before_update) {
  forward(images, activations_);
  matrix slope = activations_.back();
  auto loss = slope_of_loss(slope, classes);
  if (before_update)
    before_update();
  for (std::size_t i = layers_.size(); i-- > frozen_;) {
    auto& input = i == 0 ? images : activations_[i - 1];
    matrix below;
    if (i > frozen_)
      below = (slope * layers_[i].weight).cwiseProduct((input.array() > 0).cast<float>().matrix());
    descend(layers_[i], slope, input, how);
    slope = std::move(below);
  }
  return loss;
}

double mlp::accuracy(const samples& of) const {
  std::vector<matrix> activations;
  forward(of.images, activations);
  std::size_t right = 0;
  for (Eigen::Index i = 0; i < of.size(); ++i) {
    Eigen::Index best = 0;
    activations.back().row(i).maxCoeff(&best);
    right += best == of.classes[static_cast<std::size_t>(i)];
  }
  return static_cast<double>(right) / static_cast<double>(of.size());
}

millrace::model_graph mlp::graph() const {
  millrace::model_graph graph;
  std::vector<std::uint32_t> before; // the first layer has no input layer
  for (auto& l : layers_) {
    auto shape = shape_of(l.weight);
    before = {graph.add(
      {l.label,
       "Linear",
       {{"in_features", std::to_string(shape[1])}, {"out_features", std::to_string(shape[0])}},
       {{"weight", dtype::f32, shape}, {"bias", dtype::f32, {shape[0]}}},
       before})};
    if (&l != &layers_.back())
      before = {graph.add({"relu_" + l.label, "ReLU", {}, {}, before})};
  }
  return graph;
}

std::vector<tensor_view> mlp::tensors() {
  std::vector<tensor_view> all;
  for (auto& l : layers_)
    for (auto& t : l.tensors())
      all.push_back(std::move(t));
  return all;
}

std::vector<tensor_view> mlp::training_state() {
  auto all = tensors();
  for (auto& l : layers_)
    for (auto& t : l.velocities())
      all.push_back(std::move(t));
  return all;
}

} // namespace train_digits
