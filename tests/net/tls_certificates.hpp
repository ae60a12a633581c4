// Makes certificates for a test: an authority, and what it issues, as PEM files.
// Used by the TLS tests.
#pragma once

#include "channel_support.hpp"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <cstdio>

namespace millrace::net::testing {

class authority {
public:
  explicit authority(const std::string& name) : key_(new_key()), certificate_(X509_new()) {
    fill(certificate_.get(), name, key_.get());
    X509_set_issuer_name(certificate_.get(), X509_get_subject_name(certificate_.get()));
    extend(certificate_.get(), NID_basic_constraints, "critical,CA:TRUE");
    BOOST_REQUIRE(X509_sign(certificate_.get(), key_.get(), EVP_sha256()) > 0);
    write_certificate(dir_.path + "/authority.pem", certificate_.get());
  }

  /// Files of a certificate for a node; `dns` empty leaves the common name alone.
  tls::context_options issue(const std::string& common_name, const std::string& dns = {}) {
    auto key = new_key();
    certificate_ptr made{X509_new()};
    fill(made.get(), common_name, key.get());
    X509_set_issuer_name(made.get(), X509_get_subject_name(certificate_.get()));
    if (!dns.empty())
      extend(made.get(), NID_subject_alt_name, ("DNS:" + dns).c_str());
    BOOST_REQUIRE(X509_sign(made.get(), key_.get(), EVP_sha256()) > 0);
    auto base = dir_.path + "/" + std::to_string(++issued_);
    tls::context_options o;
    o.certificate = base + ".pem";
    o.key = base + ".key";
    o.authority = dir_.path + "/authority.pem";
    write_certificate(o.certificate, made.get());
    auto* file = std::fopen(o.key.c_str(), "w");
    BOOST_REQUIRE(
      PEM_write_PrivateKey(file, key.get(), nullptr, nullptr, 0, nullptr, nullptr) == 1);
    std::fclose(file);
    BOOST_REQUIRE(::chmod(o.key.c_str(), 0600) == 0);
    return o;
  }
  std::shared_ptr<const tls::context> context(
    const std::string& common_name, const std::string& dns = {}) {
    auto made = tls::context::open(issue(common_name, dns));
    BOOST_REQUIRE_MESSAGE(made, (made ? "" : made.error().to_string()));
    return *made;
  }

private:
  struct freed {
    void operator()(EVP_PKEY* p) const { EVP_PKEY_free(p); }
    void operator()(X509* p) const { X509_free(p); }
  };
  using key_ptr = std::unique_ptr<EVP_PKEY, freed>;
  using certificate_ptr = std::unique_ptr<X509, freed>;

  static key_ptr new_key() {
    key_ptr made{EVP_EC_gen("P-256")};
    BOOST_REQUIRE(made);
    return made;
  }
  void fill(X509* c, const std::string& name, EVP_PKEY* key) {
    X509_set_version(c, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(c), ++serial_);
    X509_gmtime_adj(X509_getm_notBefore(c), -3600);
    X509_gmtime_adj(X509_getm_notAfter(c), 3600);
    X509_NAME_add_entry_by_txt(
      X509_get_subject_name(c), "CN", MBSTRING_UTF8,
      reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
    BOOST_REQUIRE(X509_set_pubkey(c, key) == 1);
  }
  static void extend(X509* c, int kind, const char* value) {
    auto* extension = X509V3_EXT_conf_nid(nullptr, nullptr, kind, value);
    BOOST_REQUIRE(extension);
    BOOST_REQUIRE(X509_add_ext(c, extension, -1) == 1);
    X509_EXTENSION_free(extension);
  }
  static void write_certificate(const std::string& path, X509* c) {
    auto* file = std::fopen(path.c_str(), "w");
    BOOST_REQUIRE(PEM_write_X509(file, c) == 1);
    std::fclose(file);
  }

  temp_dir dir_;
  long serial_ = 0;
  int issued_ = 0;
  key_ptr key_;
  certificate_ptr certificate_;
};

} // namespace millrace::net::testing
