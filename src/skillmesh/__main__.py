from skillmesh.cli import main

main()
