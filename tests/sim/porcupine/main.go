package main
import _ "github.com/anishathalye/porcupine"
func main(){}
