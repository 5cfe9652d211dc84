// Command pdrouter is the gateway for prefill/decode disaggregation and its tools.
package main

func main() {}
