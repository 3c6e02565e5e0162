package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// pki makes certificates, in files, as an authority of its own.
type pki struct {
	t    *testing.T
	dir  string
	ca   string // file
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newPKI(t *testing.T) *pki {
	t.Helper()
	p := &pki{t: t, dir: t.TempDir()}
	p.key = p.newKey()
	p.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, p.cert, p.cert, p.key.Public(), p.key)
	if err != nil {
		t.Fatal(err)
	}
	p.ca = p.write("ca.pem", "CERTIFICATE", der)
	return p
}

func (p *pki) newKey() *ecdsa.PrivateKey {
	p.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		p.t.Fatal(err)
	}
	return key
}

func (p *pki) write(name, kind string, der []byte) string {
	p.t.Helper()
	file := filepath.Join(p.dir, name)
	// Replaced in one step, as tools that renew certificates do.
	if err := os.WriteFile(file+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		p.t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		p.t.Fatal(err)
	}
	return file
}

// issue makes a certificate for servers on loopback and for clients. The same name
// again replaces the files.
func (p *pki) issue(name string, serial int64) (cert, key string) {
	p.t.Helper()
	k := p.newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: name}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, p.cert, k.Public(), p.key)
	if err != nil {
		p.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		p.t.Fatal(err)
	}
	return p.write(name+".pem", "CERTIFICATE", der), p.write(name+".key", "PRIVATE KEY", secret)
}

// pool trusts the authority.
func (p *pki) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	cert, err := x509.ParseCertificate(p.der())
	if err != nil {
		p.t.Fatal(err)
	}
	pool.AddCert(cert)
	return pool
}

func (p *pki) der() []byte {
	data, err := os.ReadFile(p.ca)
	if err != nil {
		p.t.Fatal(err)
	}
	block, _ := pem.Decode(data)
	return block.Bytes
}

func (p *pki) load(cert, key string) tls.Certificate {
	p.t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		p.t.Fatal(err)
	}
	return pair
}
