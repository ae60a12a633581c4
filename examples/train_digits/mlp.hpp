// A small multi-layer perceptron on Eigen, with its graph and tensor views for Millrace.
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

/// Returns the sizes of this program's networks: 64 pixels, two hidden layers, one output per
/// class.
inline std::vector<Eigen::Index> widths_for(Eigen::Index classes) {
  return {64, 256, 128, classes};
}

/// y = x Wᵀ + b, with the state of the optimiser.
struct linear {
  std::string label;
  matrix weight; // outputs × inputs
  Eigen::RowVectorXf bias;
  matrix weight_velocity;
  Eigen::RowVectorXf bias_velocity;

  linear(std::string name, Eigen::Index inputs, Eigen::Index outputs, std::uint32_t seed);

  /// Returns views of its tensors in place: "<label>.weight" and "<label>.bias".
  std::vector<millrace::tensor_view> tensors();
  /// Returns views of "<label>.weight.velocity" and "<label>.bias.velocity".
  std::vector<millrace::tensor_view> velocities();
};

/// Returns a column-major matrix as a tensor with the same rows and columns: only the strides
/// differ.
millrace::tensor_view strided_view(std::string name, Eigen::MatrixXf& m);

struct sgd {
  float rate = 0.05F;
  float momentum = 0.9F;
};

/// Linear layers with ReLU between them, softmax and cross-entropy at the end. Threads: one.
class mlp {
public:
  /// `widths`: the sizes of the input, of each hidden layer and of the output. Equal seeds give
  /// equal weights.
  mlp(const std::vector<Eigen::Index>& widths, std::uint32_t seed);

  /// Stops the first `count` layers from learning.
  void freeze(std::size_t count) { frozen_ = count; }

  /// Does one step of stochastic gradient descent. Returns the mean loss of the batch.
  /// `before_update` must return before the parameters change.
  float learn(
    const matrix& images, std::span<const int> classes, const sgd& how,
    const std::function<void()>& before_update = {});

  /// Returns the share of the images that it classifies correctly.
  double accuracy(const samples& of) const;

  std::vector<linear>& layers() noexcept { return layers_; }

  /// Returns its architecture: Linear, ReLU, Linear, ..., each fed by the layer before.
  millrace::model_graph graph() const;
  /// Returns the place in `graph()` of linear layer `index`.
  static std::size_t graph_index(std::size_t index) noexcept { return 2 * index; }

  /// Returns views of all tensors in place, layer by layer. They are valid as long as the model
  /// lives.
  std::vector<millrace::tensor_view> tensors();

  /// Returns the tensors and the state of the optimiser: everything needed to continue training.
  std::vector<millrace::tensor_view> training_state();

private:
  void forward(const matrix& images, std::vector<matrix>& activations) const;
  void descend(linear& layer, const matrix& slope, const matrix& input, const sgd& how);

  std::vector<linear> layers_;
  std::size_t frozen_ = 0;
  std::vector<matrix> activations_; // of the current batch; kept so that their memory is used again
};

} // namespace train_digits
