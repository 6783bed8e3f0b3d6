from skillmesh.cli import program

program()
