package metadata

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/ecdh"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
)

// sealContext begins what a sealed enrolment's key is derived with, so that it is a key of nothing else.
const sealContext = "pdrouter enrolment seal v1\x00"

// sealedBody is an enrolment that only the holder of the private part of a record's Key can open.
type sealedBody struct {
	Ephemeral []byte `msgpack:"ephemeral"` // X25519 public key, made for this one
	Box       []byte `msgpack:"box"`       // AES-256-GCM of an enrolmentBody
}

// seal encrypts an enrolment to the record's Key. A record is signed before it travels and may be sent again by whoever has
// seen it: what it is answered with must be of use to its author alone.
func seal(rec Record, plain []byte) (sealedBody, error) {
	public, err := ecdh.X25519().NewPublicKey(rec.Key)
	if err != nil {
		return sealedBody{}, fmt.Errorf("record's key: %w", err)
	}
	own, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return sealedBody{}, err
	}
	secret, err := own.ECDH(public) // refuses points that give everybody the same secret
	if err != nil {
		return sealedBody{}, fmt.Errorf("record's key: %w", err)
	}
	ephemeral := own.PublicKey().Bytes()
	box, err := sealing(rec, secret, ephemeral)
	if err != nil {
		return sealedBody{}, err
	}
	return sealedBody{Ephemeral: ephemeral, Box: box.Seal(nil, make([]byte, box.NonceSize()), plain, nil)}, nil
}

// unseal is the inverse of seal. agree computes the secret that the holder of the private part of the record's Key shares
// with the holder of a public key.
func unseal(rec Record, body sealedBody, agree func(public []byte) ([]byte, error)) ([]byte, error) {
	if len(body.Ephemeral) != keyBytes {
		return nil, fmt.Errorf("enrolment is sealed with a key of %d bytes; want %d", len(body.Ephemeral), keyBytes)
	}
	secret, err := agree(body.Ephemeral)
	if err != nil {
		return nil, fmt.Errorf("enrolment: %w", err)
	}
	box, err := sealing(rec, secret, body.Ephemeral)
	if err != nil {
		return nil, fmt.Errorf("enrolment: %w", err)
	}
	plain, err := box.Open(nil, make([]byte, box.NonceSize()), body.Box, nil)
	if err != nil {
		return nil, errors.New("enrolment is not sealed to this record")
	}
	return plain, nil
}

// sealing returns the cipher of one sealed enrolment. Its key depends on a key that was made for it alone, so that the nonce
// may be zero, and on the record's run, rank and Key.
func sealing(rec Record, secret, ephemeral []byte) (cipher.AEAD, error) {
	info := sealContext + rec.ID() + "/" + rec.Rank.String() + "\x00" + string(ephemeral) + string(rec.Key)
	key, err := hkdf.Key(sha256.New, secret, nil, info, sha256.Size)
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}
