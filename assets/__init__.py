"""What exists: thin software-defined assets, one function per stage; `Stage.module` names the file."""
