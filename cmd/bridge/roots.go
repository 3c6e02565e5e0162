package main

// Where the machine has none, as in an image that holds nothing but this program,
// certificates and time zones come with it. What the machine has counts before.
import (
	_ "time/tzdata"

	_ "golang.org/x/crypto/x509roots/fallback"
)
