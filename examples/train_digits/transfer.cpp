// Loads parts of a stored model into another one, and trains the new parts.
#include "transfer.hpp"

#include <cstring>

namespace train_digits {

using millrace::fail;
using millrace::repository;
using millrace::result;

namespace {

constexpr Eigen::Index few = 150; // labelled examples for the new task

// Loads by name: the bytes arrive in the matrices of the new model.
result<millrace::load_receipt> load_by_name(
  repository repo, const std::string& source, linear& layer) {
  std::vector<millrace::load_target> targets;
  for (auto& tensor : layer.tensors())
    targets.push_back({.into = tensor});
  return repo.load(source, std::move(targets)).result();
}

// Loads by id. A layer's id follows from its structure and its inputs, and these layers are the
// same in both models. The tensors arrive in one buffer, one after the other.
result<millrace::load_receipt> load_by_id(
  repository repo, const std::string& source, mlp& model, std::size_t index) {
  auto ids = millrace::identify_layers(model.graph());
  if (!ids)
    return fail(ids.error());
  auto own = model.layers()[index].tensors();
  std::uint64_t size = 0;
  for (auto& tensor : own)
    size += millrace::size_bytes(tensor.desc).value_or(0);
  std::vector<std::byte> buffer(size);
  auto loaded = repo.load_layers(source, {(*ids)[mlp::graph_index(index)]}, buffer).result();
  if (!loaded)
    return fail(loaded.error());
  for (std::size_t i = 0; i < own.size(); ++i)
    std::memcpy(own[i].data, loaded->tensors[i].data, *millrace::size_bytes(own[i].desc));
  return loaded->receipt;
}

} // namespace

result<transfer_outcome> learn_even_or_odd(
  const repository& repo, const std::string& source, const dataset& digits,
  const training_plan& plan) {
  auto examples = even_or_odd(head_of(digits.train, few));
  auto test = even_or_odd(digits.test);

  mlp second{widths_for(2), 11};
  auto by_name = load_by_name(repo, source, second.layers()[0]);
  if (!by_name)
    return fail(by_name.error());
  auto by_id = load_by_id(repo, source, second, 1);
  if (!by_id)
    return fail(by_id.error());
  second.freeze(2);
  train(second, examples, plan);

  mlp scratch{widths_for(2), 11};
  train(scratch, examples, plan);

  transfer_outcome out;
  out.loaded_accuracy = second.accuracy(test);
  out.scratch_accuracy = scratch.accuracy(test);
  out.loaded_bytes = by_name->size_bytes + by_id->size_bytes;
  for (auto& tensor : mlp{widths_for(10), 0}.tensors())
    out.model_bytes += *millrace::size_bytes(tensor.desc);
  out.loaded_by = by_name->driver;
  return out;
}

} // namespace train_digits
