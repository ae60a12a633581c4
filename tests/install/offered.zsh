# offered.zsh COMPLETION: prints, for the last word of some lines, what the completion offers to a zsh in this folder.
completion=$1

# Outside of a line being edited, zsh has neither of these.
compadd() { [[ $1 = -- ]] && shift; offers+=(${(M)@:#${(b)words[CURRENT]}*}) }
_files() { offers+=(${words[CURRENT]}*(N)) }

offered() {
  local -a words=("$@") offers
  local CURRENT=$#
  . $completion
  print -r -- "${(qq)@[-1]}: $offers"
}

offered millrace ''
offered millrace mod
offered millrace models r
offered millrace serve --co
offered millrace serve --config b
offered millrace pool check b
offered millrace serve --node b
