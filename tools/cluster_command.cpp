// `millrace cluster`: makes the secret of a cluster, and shows which of its nodes answer.
#include <millrace/net/tls/cluster_secret.hpp>
#include <millrace/tools/connection.hpp>
#include <millrace/tools/output.hpp>
#include <millrace/tools/text.hpp>

#include <ostream>

namespace millrace::tools {

namespace {

int make_secret(invocation& call, const std::string& file) {
  if (auto bad = net::tls::create_cluster_secret(file); !bad.ok())
    return report(call, bad);
  if (call.json)
    print_json(call, {{"secret", file}});
  else
    call.out << file << ": a new secret; copy it to every host of the cluster (readable by the "
             << "service's user only), and name it in the configuration: security: { secret: "
             << file << " }\n";
  return exit_ok;
}

struct answered_node {
  node_entry node;
  result<node_status> answer;
};

json node_json(const answered_node& n) {
  json out = {
    {"node", n.node.name}, {"addresses", n.node.addresses}, {"reachable", n.answer.has_value()}};
  if (n.answer)
    out["version"] = n.answer->version;
  else
    out["error"] = to_json(n.answer.error());
  return out;
}

void print_nodes(invocation& call, const std::vector<answered_node>& all) {
  if (call.json) {
    json nodes = json::array();
    for (auto& n : all)
      nodes.push_back(node_json(n));
    return print_json(call, {{"nodes", nodes}});
  }
  table shown{{"node", "addresses", "reachable", "version"}};
  for (auto& n : all)
    shown.add(
      {n.node.name, joined(n.node.addresses), n.answer ? "yes" : "no: " + n.answer.error().detail(),
       n.answer ? n.answer->version : ""});
  shown.print(call.out);
}

int list_nodes(invocation& call, const connection_options& options) {
  auto client = connect_to(options);
  if (!client)
    return report(call, client.error());
  auto answers = client->status().result();
  if (!answers)
    return report(call, answers.error());
  std::vector<answered_node> all;
  bool complete = true;
  auto nodes = client->nodes();
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    complete &= (*answers)[i].has_value();
    all.push_back({std::move(nodes[i]), std::move((*answers)[i])});
  }
  print_nodes(call, all);
  return complete ? exit_ok : exit_failed;
}

} // namespace

void add_cluster_command(CLI::App& app, invocation& call) {
  auto* cluster = app.add_subcommand("cluster", "Make a cluster's secret; see who answers");
  cluster->require_subcommand(1);
  auto [secret, file] = add_command<std::string>(
    *cluster, call, "secret", "Make a new secret in a new file that only its owner reads",
    make_secret);
  secret->add_option("FILE", *file, "the file to make")->type_name("")->required();
  auto [nodes, options] = add_command<connection_options>(
    *cluster, call, "nodes", "List the nodes, their addresses, and which of them answer",
    list_nodes);
  add_connection_options(*nodes, *options);
}

} // namespace millrace::tools
