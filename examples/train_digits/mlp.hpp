// A small multi-layer perceptron on Eigen, and how it looks to Millrace: a graph and tensor views.
// Trained, stored and loaded by train_digits.
#pragma once

#include "dataset.hpp"

#include <millrace/core/model_graph.hpp>
#include <millrace/core/tensor_view.hpp>

#include <Eigen/Core>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace train_digits {

/// The networks of this program: 64 pixels, two hidden layers, as many outputs as classes.
inline std::vector<Eigen::Index> widths_for(Eigen::Index classes) {
  return {64, 256, 128, classes};
}

/// y = x Wᵀ + b, and what the optimiser remembers of it.
struct linear {
  std::string label;
  matrix weight; // outputs × inputs
  Eigen::RowVectorXf bias;
  matrix weight_velocity;
  Eigen::RowVectorXf bias_velocity;

  linear(std::string name, Eigen::Index inputs, Eigen::Index outputs, std::uint32_t seed);

  /// Its tensors where they lie: "<label>.weight" and "<label>.bias".
  std::vector<millrace::tensor_view> tensors();
  /// "<label>.weight.velocity" and "<label>.bias.velocity".
  std::vector<millrace::tensor_view> velocities();
};

/// A column-major matrix as a tensor of its rows and columns: only the strides differ.
millrace::tensor_view strided_view(std::string name, Eigen::MatrixXf& m);

struct sgd {
  float rate = 0.05F;
  float momentum = 0.9F;
};

/// Linear layers with ReLU between them, softmax and cross-entropy at the end. Threads: one.
class mlp {
public:
  /// `widths`: of the input, of each hidden layer, of the output. Equal seeds give equal weights.
  mlp(const std::vector<Eigen::Index>& widths, std::uint32_t seed);

  /// The first `count` layers no longer learn.
  void freeze(std::size_t count) { frozen_ = count; }

  /// One step of stochastic gradient descent; returns the mean loss of the batch.
  /// `before_update`: what must be over before the parameters change.
  float learn(
    const matrix& images, std::span<const int> classes, const sgd& how,
    const std::function<void()>& before_update = {});

  /// Share of the images that it puts in the right class.
  double accuracy(const samples& of) const;

  std::vector<linear>& layers() noexcept { return layers_; }

  /// Its architecture: Linear, ReLU, Linear, ..., each fed by the one before.
  millrace::model_graph graph() const;
  /// The place in `graph()` of linear layer `index`.
  static std::size_t graph_index(std::size_t index) noexcept { return 2 * index; }

  /// All tensors where they lie, layer by layer. Valid as long as the model lives.
  std::vector<millrace::tensor_view> tensors();

  /// The same and what the optimiser remembers: all it takes to go on training.
  std::vector<millrace::tensor_view> training_state();

private:
  void forward(const matrix& images, std::vector<matrix>& activations) const;
  void descend(linear& layer, const matrix& slope, const matrix& input, const sgd& how);

  std::vector<linear> layers_;
  std::size_t frozen_ = 0;
  std::vector<matrix> activations_; // of the batch at hand; kept for their memory
};

} // namespace train_digits
